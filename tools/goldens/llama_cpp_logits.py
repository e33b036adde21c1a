"""llama.cpp's logits through its C API, for the scripts beside this one that compare with it.

Needs the `llama_cpp` package of PyPI's llama-cpp-python on PYTHONPATH and, if its library was built apart,
LLAMA_CPP_LIB_PATH (the folder with libllama.so). A helper module, not a script.
"""
import ctypes

import numpy as np


class LlamaCpp:
    """One GGUF file. `logits(ids)` runs a fresh sequence and returns the logits after each id."""

    def __init__(self, path, *, num_threads=2, context_length=None, kv_f32=False):
        import llama_cpp  # late: only checks need it
        self.api = llama_cpp
        llama_cpp.llama_backend_init()
        params = llama_cpp.llama_model_default_params()
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        assert self.model, f"llama.cpp cannot load {path}"
        self.vocab_size = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self.model))
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = context_length or llama_cpp.llama_model_n_ctx_train(self.model)
        params.n_batch = params.n_ubatch = 512
        params.n_threads = params.n_threads_batch = num_threads
        if kv_f32:
            params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
            params.flash_attn_type = 0  # off: the fused kernel rounds to f16
        self.context = llama_cpp.llama_init_from_model(self.model, params)
        assert self.context, f"llama.cpp makes no context for {path}"

    def logits(self, ids):
        api = self.api
        api.llama_memory_clear(api.llama_get_memory(self.context), True)
        rows = []
        for start in range(0, len(ids), 512):
            chunk = ids[start:start + 512]
            batch = api.llama_batch_init(len(chunk), 0, 1)
            batch.n_tokens = len(chunk)
            for i, token_id in enumerate(chunk):
                batch.token[i], batch.pos[i], batch.logits[i] = token_id, start + i, 1
                batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            assert api.llama_decode(self.context, batch) == 0
            data = ctypes.cast(api.llama_get_logits(self.context), ctypes.POINTER(ctypes.c_float))
            rows.append(np.ctypeslib.as_array(data, (len(chunk), self.vocab_size)).copy())
            api.llama_batch_free(batch)
        return np.concatenate(rows)
