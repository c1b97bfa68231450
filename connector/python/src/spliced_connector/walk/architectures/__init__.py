"""Known architectures of transformers, a module each with `build(model, config, naming)`.

`walk.registry` maps model types to them.
"""
