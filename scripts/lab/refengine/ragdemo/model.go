package ragdemo

import (
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
)

// model returns the model that serves the requests.
func (o *Options) model() (*refengine.Model[float32], error) {
	if o.Trained != nil {
		return o.Trained.Model, nil
	}
	return model(modelSeed, o.Tolerance)
}

// Model returns the demo's model, with random weights.
func Model(seed uint64) (*refengine.Model[float32], error) { return model(seed, 0) }

func model(seed uint64, tolerance float64) (*refengine.Model[float32], error) {
	c := modelfile.Small("demo-gdn-8l")
	c.Storage.Tolerance = tolerance
	w, err := modelfile.Seeded(c, seed)
	if err != nil {
		return nil, err
	}
	return refengine.New[float32](w)
}
