#!/usr/bin/env python3
"""Quire beside llama.cpp and OpenVINO GenAI on this machine's processor: the same GGUF files, in turns.

    compare_cpu.py QUIRE MODEL.gguf... [--llama-bin FOLDER] [--openvino-python PYTHON] [--cells CELL,...]
                   [--rounds 3] [--threads 2] [--out RESULTS.json]

A cell is BATCHxPROMPT+GENERATED: 1x512+32 is one sequence of 512 prompt tokens that generates 32 more. Each round
measures a cell of a model with every program before the next cell, so that a machine which slows down does so for all.
FOLDER holds llama-bench and llama-batched-bench; PYTHON has openvino-genai, which reads some of the formats. Progress is
told on stderr; then a table of medians. RESULTS.json keeps every run with its command. No assertion of speed.
"""

import argparse
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import time

CELLS = "1x128+64,1x512+16,1x2048+32,4x512+32,16x512+32,32x512+32"
HERE = pathlib.Path(__file__).resolve().parent


class Cell:
    def __init__(self, text):
        match = re.fullmatch(r"(\d+)x(\d+)\+(\d+)", text)
        if match is None:
            raise SystemExit(f"compare_cpu.py: {text} is no cell; one looks like 16x512+32")
        self.text = text
        self.batch, self.prompt, self.generated = map(int, match.groups())


def quire_commands(options, model, cell):
    return [[options.quire, "bench", model, "--threads", str(options.threads), "--batch-sizes", str(cell.batch),
             "--prompt-lens", str(cell.prompt), "--gen-lens", str(cell.generated), "--repeats", "1", "--json"]]


def read_quire(outputs):
    cell = json.loads(outputs[0].splitlines()[-1])
    return {"prefill_tok_s": cell["prefill_tok_s"]["median"], "decode_tok_s": cell["decode_tok_s"]["median"],
            "share_of_limit": cell["share_of_limit"]}


def llama_commands(options, model, cell):
    flags = ["-m", model, "-t", str(options.threads)]
    if cell.batch == 1:
        bench = [f"{options.llama_bin}/llama-bench", *flags, "-r", "1", "-o", "json"]
        return [bench + ["-p", str(cell.prompt), "-n", "0"],
                bench + ["-p", "0", "-n", str(cell.generated), "-d", str(cell.prompt)]]
    context = cell.batch * (cell.prompt + cell.generated)
    return [[f"{options.llama_bin}/llama-batched-bench", *flags, "-c", str(context), "-npp", str(cell.prompt),
             "-ntg", str(cell.generated), "-npl", str(cell.batch), "--output-format", "jsonl"]]


def read_llama(outputs):
    if len(outputs) == 2:
        prefill, decode = (json.loads(output)[0]["avg_ts"] for output in outputs)
        return {"prefill_tok_s": prefill, "decode_tok_s": decode}
    row = json.loads(next(line for line in outputs[0].splitlines() if line.startswith("{")))
    return {"prefill_tok_s": row["speed_pp"], "decode_tok_s": row["speed_tg"]}


def openvino_commands(options, model, cell):
    return [[options.openvino_python, str(HERE / "openvino_cells.py"), model, str(options.threads), str(cell.batch),
             str(cell.prompt), str(cell.generated)]]


def read_openvino(outputs):
    return json.loads(outputs[0].splitlines()[-1])


def measure(commands, read, seconds):
    """The figures that the commands print, or why there are none."""
    outputs = []
    for command in commands:
        # llama.cpp's libraries lie beside its programs.
        environment = {**os.environ, "LD_LIBRARY_PATH": os.path.dirname(command[0])}
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment)
        except subprocess.TimeoutExpired:
            return {"error": f"more than {seconds} seconds"}
        if done.returncode != 0:
            return {"error": (done.stderr or done.stdout)[-300:]}
        outputs.append(done.stdout)
    try:
        return read(outputs)
    except (ValueError, KeyError, IndexError, StopIteration) as error:
        return {"error": f"unreadable output: {error!r}"}


def shown(command):
    return " ".join(os.path.basename(word) if "/" in word else word for word in command)


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text()
    name = re.search(r"model name\s*: (.*)", info)
    flags = re.search(r"flags\s*: (.*)", info)
    wanted = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8")
    return {"cpu": name.group(1) if name else "unknown", "cores": len(os.sched_getaffinity(0)),
            "features": [flag for flag in wanted if flags and flag in flags.group(1).split()]}


def medians(runs, model, cell, program, figure):
    values = [run[figure] for run in runs
              if (run["model"], run["cell"], run["program"]) == (model, cell, program) and run.get(figure)]
    return (statistics.median(values), min(values), max(values)) if values else None


def print_table(runs, models, cells, programs):
    header = f"{'model':<28}{'cell':<12}{'figure':<9}" + "".join(f"{program:>26}" for program in programs)
    print(header + f"{'quire / best peer':>20}")
    for model in models:
        name = pathlib.Path(model).stem
        for cell in cells:
            for figure in ("prefill_tok_s", "decode_tok_s"):
                found = {program: medians(runs, name, cell.text, program, figure) for program in programs}
                texts = [f"{f[0]:.1f} ({f[1]:.1f}..{f[2]:.1f})" if f else "-" for f in found.values()]
                peers = [f[0] for program, f in found.items() if f and program != "quire"]
                ratio = f"{found['quire'][0] / max(peers):.2f}" if peers and found["quire"] else "-"
                print(f"{name:<28}{cell.text:<12}{figure[:-6]:<9}" + "".join(f"{t:>26}" for t in texts) + f"{ratio:>20}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--llama-bin")
    parser.add_argument("--openvino-python")
    parser.add_argument("--cells", default=CELLS)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=300, help="seconds that one run may take")
    parser.add_argument("--out")
    options = parser.parse_args()
    cells = [Cell(text) for text in options.cells.split(",")]
    programs = {"quire": (quire_commands, read_quire)}
    if options.llama_bin:
        programs["llama.cpp"] = (llama_commands, read_llama)
    if options.openvino_python:
        programs["openvino"] = (openvino_commands, read_openvino)

    runs, gave_up = [], set()
    for model in options.models:
        for cell in cells:
            for turn in range(options.rounds):
                for program, (make_commands, read) in programs.items():
                    if (model, cell.batch > 1, program) in gave_up:
                        continue
                    commands = make_commands(options, model, cell)
                    begin = time.monotonic()
                    figures = measure(commands, read, options.timeout)
                    if "error" in figures:
                        gave_up.add((model, cell.batch > 1, program))
                    runs.append({"model": pathlib.Path(model).stem, "cell": cell.text, "program": program, "round": turn,
                                 "seconds": round(time.monotonic() - begin, 2), "commands": [shown(c) for c in commands],
                                 **figures})
                    print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    print_table(runs, options.models, cells, programs)
    if options.out:
        record = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "threads": options.threads, "runs": runs}
        pathlib.Path(options.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
