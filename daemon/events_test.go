package daemon

import (
	"context"
	"encoding/binary"
	"io"
	"log"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-zeromq/zmq4"
	"github.com/vmihailenco/msgpack/v5"

	"github.com/spliced-kv/spliced/connector"
	"github.com/spliced-kv/spliced/policy/profile"
)

// An engine asks for advice and stores; a router that subscribes is told of the blocks,
// and that they are gone.
func TestARouterHearsWhatAnEngineStores(t *testing.T) {
	c := withDisk(t)
	c.EventsBind, c.EventsPod, c.EventsModel = netip.MustParseAddrPort("127.0.0.1:0"), "10.0.0.1:8000", "served"
	d := startDaemon(t, c, nil)
	p := testProfile(1)
	_, m := openClient(t, d.Socket(), p, connector.Binding{})
	pub, _ := d.events.Addrs()
	ctx, cancel := context.WithCancel(context.Background())
	sub := zmq4.NewSub(ctx, zmq4.WithLogger(log.New(io.Discard, "", 0)))
	defer func() { cancel(); sub.Close() }()
	must(t, sub.Dial("tcp://"+pub.String()))
	must(t, sub.SetOption(zmq4.OptionSubscribe, "kv@10.0.0.1:8000@served"))
	messages := make(chan zmq4.Msg, 100)
	go func() {
		defer close(messages)
		for {
			msg, err := sub.Recv()
			if err != nil {
				return
			}
			messages <- msg
		}
	}()
	// next is one event of a kind; others before it are left out.
	next := func(tag string) map[string]any {
		t.Helper()
		for limit := time.After(patience); ; {
			select {
			case msg := <-messages:
				if len(msg.Frames) != 3 || binary.BigEndian.Uint64(msg.Frames[1]) == 0 {
					t.Fatalf("frames %q", msg.Frames)
				}
				var batch []any
				must(t, msgpack.Unmarshal(msg.Frames[2], &batch))
				for _, e := range batch[1].([]any) {
					if f := e.(map[string]any); f["type"] == tag && f["group_idx"] == int8(0) {
						return f
					}
				}
			case <-limit:
				t.Fatalf("no %s", tag)
			}
		}
	}
	tokens := newDocument(p, nil, 1, 4*promptBlock+3, profile.RoleFirst).tokens
	advice := func() {
		t.Helper()
		if _, err := m.Advise(context.Background(), &connector.AdviseQuery{Tokens: tokens, BlockTokens: promptBlock}); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "it is told what is stored", func() bool {
		if d.counter("events_subscribers") < 1 {
			return false
		}
		advice()
		return true
	})
	savePrefix(t, m, p, nil, tokens, 4*promptBlock)
	e := next("BlockStored")
	if ids := e["token_ids"].([]any); len(ids) != 4*promptBlock || len(e["block_hashes"].([]any)) != 4 || e["parent_block_hash"] != nil || e["kv_cache_spec_kind"] == "mamba" {
		t.Errorf("%+v", e)
	}
	head := newDocument(p, nil, 2, 100, profile.RoleFirst)
	put(t, m, head)
	if e := next("BlockStored"); len(e["block_hashes"].([]any)) != 100/promptBlock {
		t.Errorf("of a segment: %+v", e)
	}
	must(t, d.store.Evict(head.key))
	if e := next("BlockRemoved"); len(e["block_hashes"].([]any)) != 100/promptBlock {
		t.Errorf("of a segment: %+v", e)
	}
	if d.counter("events_told_bytes") == 0 {
		t.Error("no bytes are counted")
	}
	// An event may arrive before its object is counted.
	eventually(t, "one object is counted", func() bool { return d.counter("events_objects") == 1 })
	for _, check := range d.view.Checks() {
		if strings.HasPrefix(check.Name, "events") && check.State != "ok" {
			t.Errorf("%+v", check)
		}
	}
}
