"""Known architectures of transformers, a module each with `build(model, config, naming)`.

`walk.registry` says which model types they serve.
"""
