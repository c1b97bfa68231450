package profile

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
)

//go:generate cp models.json ../../connector/python/src/spliced_connector/model/models.json

// modelsJSON is a modelTable. The Python package reads a copy of it.
//
//go:embed models.json
var modelsJSON []byte

// modelTable says for each model_type what the fields of a config mean.
type modelTable struct {
	Refused struct { // why all engine adapters refuse a model
		Window string // that has a layer of this kind
	}
	Wrappers []string // types of multimodal models: they contain the config of a text model, which has its own type
	Models   []*modelRow
}

// modelRow describes the configs of some types. Of several rows with one type, the first
// whose conditions hold applies.
//
// A size is written as alternatives, "intermediate_size | expand * hidden_size". Those
// before the last are fields, skipped if missing or 0. The last is computed from left to
// right. Its terms are numbers, required fields, sizes that linearRow lists before it, and
// attention_dim, which is head_dim or, if that is missing, hidden_size / num_attention_heads.
type modelRow struct {
	Types []string
	Note  string

	// Conditions.
	Section     string         // an object in the config; its fields are named "section.field" in this row
	Has         string         // a field
	UnlessClass string         `json:"unless_class"` // a class that the field architectures must not list
	If          map[string]any // values of flags and texts; a missing flag is false

	// Changes to the fields of the config, in this order.
	Ignores  []string                   // fields that the model's code does not use
	Defaults map[string]json.RawMessage // values of fields that are missing or null
	Absent   map[string]json.RawMessage // values of fields that are missing

	// Like is a type by whose rows the changed fields are read. Such a row has no layers.
	Like string

	Refuses   map[string]string // flags that must not be set, and why
	Linear    *linearRow
	Attention *attentionRow
	Layers    []layerRule // the first whose field Names or At is in the config, otherwise the last
}

// linearRow describes the layers called linear. Sizes are in the order in which they are
// read. Without a family, the layer is a convolution alone.
type linearRow struct {
	Family     string
	ValueHeads string `json:"value_heads"`
	KeyHeads   string `json:"key_heads"` // default: value_heads
	KeyDim     string `json:"key_dim"`
	ValueDim   string `json:"value_dim"` // default: key_dim
	Channels   string // if value_dim is absent or "auto", it is this number over value_heads
	Kernel     string
	Rope       *ropeRow
}

// attentionRow describes the layers called full and window.
type attentionRow struct {
	Dim    string // default: attention_dim
	Latent bool   // MLA: the rope rotates the whole shared key, in interleaved pairs
	Window string // a field
	Rope   *ropeRow
}

// ropeRow says when there is a rope and how many dimensions of a head it may rotate. See
// fields.rope for the rest.
type ropeRow struct {
	If        map[string]any
	OffIfNull string `json:"off_if_null"` // a field, here or in rope_parameters
	Dims      string // a field; by default all
}

// layerRule lists layers by name: linear, full, window, none, or two of them for a decoder
// layer that is two layers of a profile.
type layerRule struct {
	Names   string            // a field with a text for each layer
	Letters string            // a field with a letter for each layer
	Numbers string            // a field with a number for each layer
	Of      map[string]string // what these mean; default: layerNames

	At     string // a field with the indexes of the layers that are full
	Every  string // a size: the last of so many layers is full
	Offset string // a field with the index of that layer instead of the last
	Rest   string // layers after the last whole group: "full", "refused", or by default linear
	Until  string // a field: layers before this index are full, the others window

	OneOf map[string]string `json:"one_of"` // fields that list layers of each kind, counting from 1
	Each  string            // all layers
}

// layerNames has the usual names in configs. The shorter names are older than transformers 5.
var layerNames = map[string]string{"linear_attention": "linear", "mamba": "linear", "full_attention": "full", "attention": "full"}

// readModels parses the table. Few programs read configs, so it is not kept.
func readModels() (t modelTable) {
	if err := json.Unmarshal(modelsJSON, &t); err != nil {
		panic(fmt.Sprintf("models.json: %v", err))
	}
	return t
}

func (t modelTable) types() (all []string) {
	for _, r := range t.Models {
		all = append(all, r.Types...)
	}
	slices.Sort(all)
	return slices.Compact(all)
}
