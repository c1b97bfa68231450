package disk

import (
	"path/filepath"
	"testing"

	"github.com/spliced-kv/spliced/policy"
	"github.com/spliced-kv/spliced/policy/profile"
	"github.com/spliced-kv/spliced/tiering"
	"github.com/spliced-kv/spliced/tiering/tiertest"
)

// Parts that codecs are asked for.
var (
	codedKV  = []profile.PartKind{profile.PartK, profile.PartV}
	codedAll = []profile.PartKind{profile.PartT, profile.PartS, profile.PartConv, profile.PartK, profile.PartV}
)

// conformConfig is of slabs that are small, so that there are several.
func conformConfig(o tiertest.Options) Config {
	cfg := Config{GranuleBytes: 4 << 10, Workers: 3}
	cfg.SlabBytes = min(max((o.PublicBytes+o.PrivateBytes)/6, 256<<10), 1<<20)
	return cfg
}

// rest is left out where tests are to be short, as with the race detector.
func rest(t *testing.T) {
	if testing.Short() {
		t.Skip("left out with -short")
	}
}

func TestDiskConforms(t *testing.T) {
	for name, coded := range map[string][]profile.PartKind{"none": nil, "all": codedAll} {
		t.Run("memory/codec="+name, func(t *testing.T) {
			if coded != nil {
				rest(t)
			}
			tiertest.Conformance(t, func(t testing.TB, o tiertest.Options) tiertest.Subject {
				cfg := conformConfig(o)
				cfg.Coded = coded
				return newSubject(t, o, cfg, 1)
			})
		})
	}
	t.Run("directory", func(t *testing.T) {
		rest(t)
		tiertest.Conformance(t, func(t testing.TB, o tiertest.Options) tiertest.Subject {
			cfg := conformConfig(o)
			cfg.Dir, cfg.GranuleBytes, cfg.Coded = filepath.Join(t.TempDir(), "tier"), 16<<10, codedKV
			return newSubject(t, o, cfg, 1)
		})
	})
}

func TestMemoryOverDiskConforms(t *testing.T) {
	for name, behind := range map[string]bool{"write-behind": true, "demotion": false} {
		t.Run(name, func(t *testing.T) {
			if !behind {
				rest(t)
			}
			tiertest.Conformance(t, func(t testing.TB, o tiertest.Options) tiertest.Subject {
				below := conformConfig(o)
				below.QueueLen = 4 // so that what is dirty has to wait
				return newStack(t, o, tiering.Config{PageBytes: 4096, WriteBehind: behind, Eviction: policy.NewLRU}, below, 1)
			})
		})
	}
}
