#!/usr/bin/env python3
"""What a busy neighbour takes: one sequence decodes alone, and beside a process that spins on one of the processors.

    compare_neighbour.py QUIRE MODEL.gguf [--llama-bin FOLDER] [--openvino-python PYTHON] [--cell 1x128+96] [--rounds 3]
                         [--threads 2] [--out RESULTS.json]

The programs use every processor that this one may use, and the neighbour is pinned to one of them: with two threads and
two processors a fair share of the machine is three quarters. Alone and beside are measured in turns. Prints the share
of its undisturbed speed that each program keeps. No assertion of speed.
"""

import argparse
import json
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import compare_cpu


class Neighbour:
    """A process that does nothing, without rest."""

    def __enter__(self):
        processor = max(os.sched_getaffinity(0))
        self.process = subprocess.Popen([sys.executable, "-c", f"import os; os.sched_setaffinity(0, [{processor}])\nwhile True: pass"])
        time.sleep(0.3)

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()


class Nobody:
    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("quire")
    parser.add_argument("model")
    parser.add_argument("--llama-bin")
    parser.add_argument("--openvino-python")
    parser.add_argument("--cell", default="1x128+96", type=compare_cpu.Cell)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--timeout", type=int, default=120, help="seconds that one run may take")
    parser.add_argument("--out")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the neighbour is ended too
    runs = []
    programs = compare_cpu.chosen_programs(options)
    for turn in range(options.rounds):
        for program, (make_commands, read) in programs.items():
            for place, neighbour in (("alone", Nobody), ("beside", Neighbour)):
                commands = make_commands(options, options.model, options.cell)
                if program == "llama.cpp":  # its second command decodes
                    commands, read = commands[-1:], compare_cpu.read_llama_decode
                with neighbour():
                    figures = compare_cpu.measure(commands, read, options.timeout)
                runs.append({"program": program, "place": place, "round": turn,
                             "commands": [compare_cpu.shown(command) for command in commands], **figures})
                print(json.dumps(runs[-1]), file=sys.stderr, flush=True)
    for program in programs:
        speeds = {place: [run["decode_tok_s"] for run in runs
                          if (run["program"], run["place"]) == (program, place) and "decode_tok_s" in run]
                  for place in ("alone", "beside")}
        if all(speeds.values()):
            alone, beside = (statistics.median(speeds[place]) for place in ("alone", "beside"))
            print(f"{program:<12}alone {alone:7.1f} tok/s   beside a neighbour {beside:7.1f}   kept {100 * beside / alone:.0f} %")
    if options.out:
        record = {"date": time.strftime("%Y-%m-%d"), "machine": compare_cpu.machine(), "threads": options.threads,
                  "model": pathlib.Path(options.model).stem, "cell": options.cell.text, "runs": runs}
        pathlib.Path(options.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
