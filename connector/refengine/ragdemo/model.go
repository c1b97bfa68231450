package ragdemo

import "github.com/spliced-kv/spliced/connector/refengine"

// Model is the demo's model, with random weights.
func Model(seed uint64) (*refengine.Model[float32], error) {
	w, err := refengine.Seeded(refengine.Small("demo-gdn-8l"), seed)
	if err != nil {
		return nil, err
	}
	return refengine.New[float32](w)
}
