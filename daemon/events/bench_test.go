package events

import (
	"encoding/binary"
	"io"
	"net"
	"runtime"
	"testing"

	"github.com/spliced-kv/spliced/tiering/tier"
)

// BenchmarkTell tells a subscriber of prompts of 4,096 tokens that come, each with a
// checkpoint, and that they go: 256 blocks.
func BenchmarkTell(b *testing.B) {
	const tokens = 4096
	n := newNode(b, func(c *Config) { c.BlockTokens, c.Memory = 16, 64<<20 })
	pub, _ := n.Addrs()
	c, err := net.Dial("tcp", pub.String())
	must(b, err)
	defer c.Close()
	subscribeRaw(b, c)
	eventually(b, "it has subscribed", func() bool { return n.subscriptions() == 1 })
	read := make(chan int64, 1)
	go func() { // counts bytes until the end
		k, _ := io.Copy(io.Discard, c)
		read <- k
	}()
	ids := prompt(1, tokens)
	b.ReportAllocs()
	i := uint32(0)
	for b.Loop() {
		i++
		ids[0] = i
		w := n.checkpoint(tier.Exact, ids)
		n.serve(ids, tokens)
		n.set.Add(w)
		done := uint64(i) * tokens / 16
		for n.Counters().Stored < done+uint64(i) {
			runtime.Gosched()
		}
		n.set.Remove(w)
	}
	n.stop()
	b.ReportMetric(float64(b.N)*tokens/16/b.Elapsed().Seconds(), "blocks/s")
	b.ReportMetric(float64(<-read)/float64(b.N), "sent-B/prompt")
}

// BenchmarkEncode is what a batch takes alone.
func BenchmarkEncode(b *testing.B) {
	for _, format := range []Format{Maps, Arrays} {
		b.Run([]string{"maps", "arrays"}[format], func(b *testing.B) {
			v := event{tag: stored, hashes: make([]uint64, 256), tokens: prompt(1, 4096), block: 16, kind: fullAttention}
			for i := range v.hashes {
				v.hashes[i] = binary.BigEndian.Uint64([]byte{1, 2, 3, 4, 5, 6, byte(i), 7})
			}
			b.ReportAllocs()
			for b.Loop() {
				b.SetBytes(int64(len(encodeBatch(format, 1, []event{v}))))
			}
		})
	}
}
