"""The layout of an engine's rows and states in its caches.

It is determined at every start: the engine's own functions write into scratch memory with the
strides of its caches. `rows` does this for attention, `states` for recurrent layers and
convolutions. `names` maps the names of caches to layers of the model. `drafting` finds the layers
of a draft model.
"""
