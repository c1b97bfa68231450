package connector_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/daemon"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/policy/profile/profiletest"
)

// An engine looks a segment up before it computes it, and publishes it after.
func Example() {
	ctx := context.Background()
	socket, stop := startDaemon()
	defer stop()

	client, err := connector.Open(connector.Options{
		Socket:   socket,
		Timeouts: connector.Timeouts{Lookup: 10 * time.Second}, // 50 ms by default; only so that this example always prints the same
	})
	if err != nil {
		log.Fatal(err) // an option is wrong; a daemon that is away is no error
	}
	defer client.Close()
	if err := client.WaitAttached(ctx); err != nil { // for the same reason
		log.Fatal(err)
	}
	prof, err := profile.New(identityOfMyModel())
	if err != nil {
		log.Fatal(err)
	}
	model, err := client.Register(prof, connector.Binding{Engine: "my engine"})
	if err != nil {
		log.Fatal(err)
	}

	document := make([]uint32, 512)
	fmt.Println(reuse(ctx, prof, model, document))
	fmt.Println(reuse(ctx, prof, model, document))
	// Output:
	// computed and published
	// found 15 parts in shared memory
}

// reuse takes a segment from the daemon, or computes and publishes it.
func reuse(ctx context.Context, prof *profile.Profile, model *connector.Model, tokens []uint32) string {
	spec, worth := prof.MidSpec(len(tokens), 8) // seams of 8 tokens
	key, attached := model.SegmentKey(spec, tokens)
	if !worth || !attached {
		return "computed in the prompt, as without a cache"
	}
	found, err := model.Acquire(ctx, []profile.SegmentKey{key}, connector.AcquireOptions{})
	if err == nil && found[0].Err == nil {
		lease := found[0].Lease
		defer lease.Release()
		parts := layoutOf(prof, spec)
		for i := range parts {
			use(lease.Part(i)) // shared memory, no copy
		}
		return fmt.Sprintf("found %d parts in shared memory", len(parts))
	}
	_, err = model.Put(ctx, &connector.PutQuery{Spec: spec, Tokens: tokens, Source: connector.Source{Parts: computeAlone(prof, spec, tokens)}})
	if err != nil && !errors.Is(err, connector.ErrExists) {
		return "not published: " + err.Error() // costs a later hit, nothing else
	}
	return "computed and published"
}

// layoutOf lists the parts of a segment: states of recurrent layers, rows of attention layers.
func layoutOf(prof *profile.Profile, spec profile.SegmentSpec) []profile.Part {
	_, interior := spec.Interior()
	return prof.SegmentLayout(interior).Parts
}

// identityOfMyModel describes a small hybrid model. An engine takes the identity of a real
// one from its config.json.
func identityOfMyModel() profile.Identity { return profiletest.Hybrid(1) }

// computeAlone stands for the engine: it makes room for each part and computes nothing.
func computeAlone(prof *profile.Profile, spec profile.SegmentSpec, _ []uint32) (parts [][]byte) {
	for _, p := range layoutOf(prof, spec) {
		parts = append(parts, make([]byte, p.Len))
	}
	return parts
}

func use([]byte) {}

// startDaemon runs a daemon in this process. `bin/spliced` is the same as a program.
func startDaemon() (socket string, stop func()) {
	dir, err := os.MkdirTemp("", "spliced")
	if err != nil {
		log.Fatal(err)
	}
	config := settings.Default()
	config.Socket, config.AdminSocket, config.HTTP = filepath.Join(dir, "s.sock"), settings.Off, settings.Off
	config.Arena, config.Private = 64*settings.MiB, 16*settings.MiB
	d, err := daemon.New(config, daemon.Parts{Log: zerolog.Nop()})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- d.Run(ctx) }()
	select {
	case <-d.Ready():
	case err := <-ended:
		log.Fatal(err)
	}
	return config.Socket, func() {
		cancel()
		if err := errors.Join(<-ended, os.RemoveAll(dir)); err != nil {
			log.Print(err)
		}
	}
}
