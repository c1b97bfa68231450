"""The layout of an engine's rows and states in its caches.

It is determined at every start: the engine's own functions write into scratch memory with the
strides of its caches. `rows` does this for attention, `states` for recurrent layers and
convolutions. `names` maps caches to layers of the model before there are any tensors, and
`drafting` finds those of a model that drafts.
"""
