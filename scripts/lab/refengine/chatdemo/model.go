package chatdemo

import (
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
)

// modelSeed is the seed of the demo's weights, equal in every run.
const modelSeed = 2

// model returns a model with random weights. Each way has a model with another name, so that the
// daemon keeps the states of the ways apart.
func model(name string) (*refengine.Model[float32], error) {
	w, err := modelfile.Seeded(modelfile.Small(name), modelSeed)
	if err != nil {
		return nil, err
	}
	return refengine.New[float32](w)
}
