#!/usr/bin/env python3
"""Quire beside llama.cpp and OpenVINO GenAI on this machine's processor: the same GGUF files, in turns.

    compare_cpu.py QUIRE MODEL.gguf... [--llama-bin FOLDER] [--openvino-python PYTHON] [--cells CELL,...]
                   [--rounds 3] [--threads 2] [--out RESULTS.json] [--seconds 60]

A cell is BATCHxPROMPT+GENERATED: 1x512+32 is one sequence of 512 prompt tokens that generates 32 more. 16x512s+32 are
sixteen sequences with one prompt, which each program reads once: decode alone is measured, in a fraction of the time.
Each round measures a cell of a model with every program before the next cell, so that a machine which slows down does
so for all. FOLDER holds llama-bench and llama-batched-bench; PYTHON has openvino-genai, which reads some of the formats.
Progress is told on stderr; then a table of medians. RESULTS.json keeps every run with its command; what it holds
already is not measured again. With --seconds no turn (one run of every program) begins after that time: call the
program again, with the same options, until it ends with code 0 and not 3. No assertion of speed.
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
        match = re.fullmatch(r"(\d+)x(\d+)(s?)\+(\d+)", text)
        if match is None:
            raise SystemExit(f"compare_cpu.py: {text} is no cell; one looks like 16x512+32")
        self.text = text
        self.is_shared = match.group(3) == "s"
        self.batch, self.prompt, self.generated = (int(match.group(i)) for i in (1, 2, 4))


def quire_commands(options, model, cell):
    return [[options.quire, "bench", model, "--threads", str(options.threads), "--batch-sizes", str(cell.batch),
             "--prompt-lens", str(cell.prompt), "--gen-lens", str(cell.generated), "--repeats", "1", "--json",
             *(["--shared-prompt"] if cell.is_shared else [])]]


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
    # Room as for prompts apart, which it asks for in any case; with one memory for all sequences it decodes faster.
    context = cell.batch * (cell.prompt + cell.generated)
    return [[f"{options.llama_bin}/llama-batched-bench", *flags, "-c", str(context), "-npp", str(cell.prompt),
             "-ntg", str(cell.generated), "-npl", str(cell.batch), "--output-format", "jsonl",
             *(["-pps", "-kvu"] if cell.is_shared else [])]]


def read_llama_decode(outputs):
    return {"decode_tok_s": json.loads(outputs[0])[0]["avg_ts"]}


def read_llama(outputs):
    if len(outputs) == 2:
        prefill, decode = (json.loads(output)[0]["avg_ts"] for output in outputs)
        return {"prefill_tok_s": prefill, "decode_tok_s": decode}
    row = json.loads(next(line for line in outputs[0].splitlines() if line.startswith("{")))
    return {"prefill_tok_s": row["speed_pp"], "decode_tok_s": row["speed_tg"]}


def openvino_commands(options, model, cell):
    return [[options.openvino_python, str(HERE / "openvino_cells.py"), model, str(options.threads), str(cell.batch),
             str(cell.prompt), str(cell.generated), *(["shared"] if cell.is_shared else [])]]


def read_openvino(outputs):
    return json.loads(outputs[0].splitlines()[-1])


def chosen_programs(options):
    """Name → (make_commands, read), quire first."""
    programs = {"quire": (quire_commands, read_quire)}
    if options.llama_bin:
        programs["llama.cpp"] = (llama_commands, read_llama)
    if options.openvino_python:
        programs["openvino"] = (openvino_commands, read_openvino)
    return programs


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


def share_of_limit(runs, model, cell, phase):
    shares = [run["share_of_limit"][phase] for run in runs
              if (run["model"], run["cell"]) == (model, cell) and run.get("share_of_limit") and f"{phase}_tok_s" in run]
    return f"{100 * statistics.median(shares):.0f} %" if shares else "-"


def print_table(runs, models, cells, programs):
    header = f"{'model':<28}{'cell':<12}{'figure':<9}" + "".join(f"{program:>26}" for program in programs)
    print(header + f"{'quire / best peer':>20}{'of the limit':>14}")
    for model in models:
        name = pathlib.Path(model).stem
        for cell in cells:
            for figure in ("prefill_tok_s", "decode_tok_s"):
                found = {program: medians(runs, name, cell.text, program, figure) for program in programs}
                texts = [f"{f[0]:.1f} ({f[1]:.1f}..{f[2]:.1f})" if f else "-" for f in found.values()]
                peers = [f[0] for program, f in found.items() if f and program != "quire"]
                ratio = f"{found['quire'][0] / max(peers):.2f}" if peers and found["quire"] else "-"
                print(f"{name:<28}{cell.text:<12}{figure[:-6]:<9}" + "".join(f"{t:>26}" for t in texts) + f"{ratio:>20}"
                      + f"{share_of_limit(runs, name, cell.text, figure[:-6]):>14}")


def read_runs(path):
    if not path or not pathlib.Path(path).exists():
        return []
    record = json.loads(pathlib.Path(path).read_text())
    if record["machine"]["cpu"] != machine()["cpu"]:
        raise SystemExit(f"compare_cpu.py: {path} is of another processor, {record['machine']['cpu']}")
    return record["runs"]


def write_runs(options, runs):
    if options.out:
        record = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "threads": options.threads, "runs": runs}
        pathlib.Path(options.out).write_text(json.dumps(record, indent=1) + "\n")


def measure_turn(options, programs, runs, model, cell, turn, begin):
    """Whether every program has now done this turn, or has failed at the like before."""
    name = pathlib.Path(model).stem
    for program, (make_commands, read) in programs.items():
        known = [run for run in runs if (run["model"], run["program"]) == (name, program)]
        if any((run["cell"], run["round"]) == (cell.text, turn) for run in known):
            continue
        if any("error" in run and (Cell(run["cell"]).batch > 1) == (cell.batch > 1) for run in known):
            continue
        if options.seconds and program == next(iter(programs)) and time.monotonic() - begin > options.seconds:
            return False
        commands = make_commands(options, model, cell)
        run_begin = time.monotonic()
        figures = measure(commands, read, options.timeout)
        if cell.is_shared:
            figures.pop("prefill_tok_s", None)
        runs.append({"model": name, "cell": cell.text, "program": program, "round": turn,
                     "seconds": round(time.monotonic() - run_begin, 2), "commands": [shown(c) for c in commands], **figures})
        print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
        write_runs(options, runs)
    return True


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
    parser.add_argument("--seconds", type=float, help="begin no further turn after this time")
    options = parser.parse_args()
    cells = [Cell(text) for text in options.cells.split(",")]
    programs = chosen_programs(options)
    begin = time.monotonic()
    runs = read_runs(options.out)
    is_done = True
    for model in options.models:
        for cell in cells:
            for turn in range(options.rounds):
                is_done = measure_turn(options, programs, runs, model, cell, turn, begin) and is_done
    print_table(runs, options.models, cells, programs)
    if not is_done:
        print("compare_cpu.py: the time is over and some turns are missing: call again", file=sys.stderr)
        sys.exit(3)


if __name__ == "__main__":
    main()
