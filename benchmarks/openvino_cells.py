#!/usr/bin/env python3
"""One measurement of OpenVINO GenAI, for compare_cpu.py; runs under a Python that has `openvino-genai`.

    openvino_cells.py MODEL.gguf THREADS BATCH PROMPT_LEN GEN_LEN [shared]

Prints a JSON line {"prefill_tok_s", "decode_tok_s"} of a batch of random prompts: LLMPipeline for one sequence,
ContinuousBatchingPipeline for more, both with a measured run after one of warming up. Decode counts all sequences.
`shared`: all have one prompt, which is read once and kept by the pipeline's prefix cache.
"""

import json
import sys
import time

import numpy
import openvino
import openvino_genai

GREEDY = {"ignore_eos": True, "do_sample": False}


def random_prompt(length):
    return numpy.random.randint(100, 30000, (1, length)).astype(numpy.int64)


def config(max_new_tokens):
    options = openvino_genai.GenerationConfig()
    options.max_new_tokens = max_new_tokens
    for name, value in GREEDY.items():
        setattr(options, name, value)
    return options


def one_sequence(pipeline, prompt_len, gen_len):
    ids = random_prompt(prompt_len)
    inputs = openvino_genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(numpy.ones_like(ids)))
    metrics = pipeline.generate(inputs, config(gen_len)).perf_metrics
    return {"prefill_tok_s": prompt_len / (metrics.get_ttft().mean / 1e3),
            "decode_tok_s": 1e3 / metrics.get_tpot().mean}


def many_sequences(pipeline, batch, prompt_len, gen_len, is_shared):
    shared_prompt = random_prompt(prompt_len)

    def run(max_new_tokens):
        # A request whose handle is dropped is given up.
        prompts = [shared_prompt if is_shared else random_prompt(prompt_len) for _ in range(batch)]
        handles = [pipeline.add_request(max_new_tokens * batch + i, openvino.Tensor(prompt), config(max_new_tokens))
                   for i, prompt in enumerate(prompts)]
        times = [time.perf_counter()]
        while pipeline.has_non_finished_requests():
            pipeline.step()
            times.append(time.perf_counter())
        assert all(handle.get_status() == openvino_genai.GenerationStatus.FINISHED for handle in handles)
        return times

    if is_shared:
        only = pipeline.add_request(0, openvino.Tensor(shared_prompt), config(1))
        while pipeline.has_non_finished_requests():
            pipeline.step()
        assert only.get_status() == openvino_genai.GenerationStatus.FINISHED
    # Requests of one token each tell the time of prefill, and its steps.
    times = run(1)
    prefill_tok_s = batch * prompt_len / (times[-1] - times[0])
    num_prefill_steps = len(times) - 1
    # All have begun after as many steps, and none ends until as many before the last.
    times = run(gen_len + 2 * num_prefill_steps)
    times = times[num_prefill_steps:len(times) - num_prefill_steps]
    return {"prefill_tok_s": prefill_tok_s, "decode_tok_s": batch * (len(times) - 1) / (times[-1] - times[0])}


def main():
    path = sys.argv[1]
    threads, batch, prompt_len, gen_len = map(int, sys.argv[2:6])
    is_shared = sys.argv[6:] == ["shared"]
    if batch == 1:
        pipeline = openvino_genai.LLMPipeline(path, "CPU", INFERENCE_NUM_THREADS=threads)
        one_sequence(pipeline, min(prompt_len, 128), 4)
        print(json.dumps(one_sequence(pipeline, prompt_len, gen_len)))
        return
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.max_num_batched_tokens = 512
    scheduler.max_num_seqs = batch
    scheduler.cache_size = 4  # GiB
    scheduler.dynamic_split_fuse = True
    scheduler.enable_prefix_caching = is_shared
    pipeline = openvino_genai.ContinuousBatchingPipeline(path, scheduler, "CPU", {"INFERENCE_NUM_THREADS": threads})
    print(json.dumps(many_sequences(pipeline, batch, prompt_len, gen_len, is_shared)))


if __name__ == "__main__":
    main()
