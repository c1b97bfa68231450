package chatdemo

import (
	"github.com/spliced-kv/spliced/scripts/lab/refengine"
	"github.com/spliced-kv/spliced/scripts/lab/refengine/modelfile"
)

// modelSeed draws the demo's weights: the same on every run.
const modelSeed = 2

// model has random weights. Its name keeps what one way stores apart from what
// another does.
func model(name string) (*refengine.Model[float32], error) {
	w, err := modelfile.Seeded(modelfile.Small(name), modelSeed)
	if err != nil {
		return nil, err
	}
	return refengine.New[float32](w)
}
