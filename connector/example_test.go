package connector_test

import (
	"context"
	"errors"
	"log"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
)

// An engine looks a segment up before it computes it, and publishes it after.
func Example() {
	ctx := context.Background()
	client, err := connector.Open(connector.Options{Socket: "/run/spliced/spliced.sock"})
	if err != nil {
		log.Fatal(err) // an option is wrong; a daemon that is away is no error
	}
	defer client.Close()
	p, err := profile.New(identityOfMyModel())
	if err != nil {
		log.Fatal(err)
	}
	model, err := client.Register(p, connector.Binding{Engine: "my engine"})
	if err != nil {
		log.Fatal(err)
	}

	tokens := make([]uint32, 512) // one document
	spec, worth := p.MidSpec(len(tokens), 8)
	key, attached := model.SegmentKey(spec, tokens)
	if !worth || !attached {
		return // compute it in the prompt, as without a cache
	}
	held, err := model.Acquire(ctx, []profile.SegmentKey{key}, connector.AcquireOptions{})
	if err == nil && held[0].Err == nil {
		defer held[0].Lease.Release()
		use(held[0].Lease.Part(0)) // shared memory, no copy
		return
	}
	_, err = model.Put(ctx, &connector.PutQuery{Spec: spec, Tokens: tokens, Source: connector.Source{Parts: computeAlone(tokens)}})
	if err != nil && !errors.Is(err, connector.ErrExists) {
		log.Print("not published: ", err) // costs a later hit, nothing else
	}
}

func identityOfMyModel() profile.Identity        { return profile.Identity{} }
func computeAlone(tokens []uint32) [][]byte      { return nil }
func use(transitionOfTheFirstLinearLayer []byte) {}
