"""Where an engine keeps a layer's rows and states.

Found out at every start, by having the engine's own functions write into scratch memory that has
the strides of its caches: `rows` for attention, `states` for recurrent layers and convolutions.
`names` tells which layer of the model a cache is of, before there are any tensors, and `drafting`
which are of a model that drafts.
"""
