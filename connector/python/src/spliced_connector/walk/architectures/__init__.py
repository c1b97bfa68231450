"""Architectures of transformers, one module for each. A module has `build(model, config, naming)`.

`walk.registry` maps model types to these modules.
"""
