package ragdemo

import (
	"github.com/spliced-kv/spliced/connector/refengine"
	"github.com/spliced-kv/spliced/connector/refengine/modelfile"
)

// model is the one that serves the requests.
func (o *Options) model() (*refengine.Model[float32], error) {
	if o.Trained != nil {
		return o.Trained.Model, nil
	}
	return Model(modelSeed)
}

// Model is the demo's model, with random weights.
func Model(seed uint64) (*refengine.Model[float32], error) {
	w, err := modelfile.Seeded(modelfile.Small("demo-gdn-8l"), seed)
	if err != nil {
		return nil, err
	}
	return refengine.New[float32](w)
}
