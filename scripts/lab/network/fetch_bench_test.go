package network

import (
	"bufio"
	"context"
	"crypto/aes"
	"crypto/cipher"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/spliced-kv/spliced/scripts/lab/network/hub"
)

var (
	resultsFlag  = flag.String("results", "", "file that BenchmarkFetchBesideOthers writes its results to, as JSON")
	mooncakeFlag = flag.String("mooncake", "", "Python with Mooncake's transfer engine, made by scripts/mooncake/environment; empty = it is left out")
)

// fetchTokens is a segment of 64 MiB of the model.
const fetchTokens = 15421

// newPlainBed is a bed whose machines are joined by veth pairs and a bridge: what the
// kernel's network does without us.
func newPlainBed(t testing.TB) *bed {
	t.Helper()
	b := emptyBed(t)
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("SKIP: ip of iproute2 is needed")
	}
	var err error
	if b.plain, err = hub.NewNamespace(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.plain.Close)
	runIn(t, b.plain, "ip", "link", "add", "br0", "type", "bridge")
	runIn(t, b.plain, "ip", "link", "set", "br0", "up")
	return b
}

// plug joins a machine to the bridge.
func (b *bed) plug(n *node) {
	b.t.Helper()
	side := "v" + n.name
	runIn(b.t, b.plain, "ip", "link", "add", side, "type", "veth", "peer", "name", "eth0", "netns", n.ns.Path())
	runIn(b.t, b.plain, "ip", "link", "set", side, "master", "br0", "up")
	runIn(b.t, n.ns, "ip", "addr", "add", netip.PrefixFrom(n.addr, 24).String(), "dev", "eth0")
	runIn(b.t, n.ns, "ip", "link", "set", "eth0", "up")
}

// runIn runs a program in a namespace and returns what it prints.
func runIn(t testing.TB, ns *hub.Namespace, name string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	var out, failed strings.Builder
	command := exec.CommandContext(ctx, name, args...)
	command.Stdout, command.Stderr = &out, &failed
	err := ns.Start(command)
	if err == nil {
		err = command.Wait()
	}
	if err != nil {
		t.Fatalf("%s %v: %v: %s%s", name, args, err, &failed, &out)
	}
	return []byte(out.String())
}

// meter is one way to move 64 MiB from one machine to another.
type meter struct {
	name string
	once func() float64 // megabytes a second
	all  []float64
}

func (m *meter) median() float64 {
	d := make([]time.Duration, len(m.all))
	for i, x := range m.all {
		d[i] = time.Duration(x * 1e6)
	}
	return float64(median(d)) / 1e6
}

// BenchmarkFetchBesideOthers has one daemon fetch a segment of 64 MiB from another in a
// namespace of its own, with and without TLS, in turns with iperf3 and Mooncake's transfer
// engine between the same namespaces, and with the cipher alone: first where veth pairs and
// a bridge join them, then where the hub does. A fetch is an acquire of a client: question,
// room, bytes, digests, publication and answer. All rates are medians, in MB/s, and what
// is to be compared ran by turns on the same machine.
func BenchmarkFetchBesideOthers(b *testing.B) {
	plain, joined := newPlainBed(b), emptyBed(b)
	cipher := &meter{name: "cipher", once: cipherRate}
	meters := []*meter{cipher}
	for _, bed := range []struct {
		*bed
		name string
	}{{plain, "veth"}, {joined, "hub"}} {
		meters = append(meters, bed.meters(bed.name)...)
	}
	// Arenas are touched as often as it takes to fill them, then connections, windows and
	// memory are warm.
	for range 6 {
		for _, m := range meters {
			m.once()
		}
	}
	for b.Loop() {
		for _, m := range meters {
			m.all = append(m.all, m.once())
		}
	}
	rates := map[string]float64{}
	for _, m := range meters {
		rates[m.name] = m.median()
		b.Logf("%-24s %8.0f MB/s", m.name, rates[m.name])
	}
	ratios := ratiosOf(rates)
	for name, x := range ratios {
		b.ReportMetric(x, name)
	}
	if *resultsFlag == "" {
		return
	}
	samples := map[string][]float64{}
	for _, m := range meters {
		samples[m.name] = m.all
	}
	write(b, *resultsFlag, map[string]any{
		"date": time.Now().Format(time.DateOnly), "machine": describe(), "command": "make bench-network",
		"what": "64 MiB between two network namespaces of one machine, in turns; MB/s, medians", "rounds": b.N,
		"mb_per_second": rates, "ratios": ratios, "samples": samples,
	})
}

// ratiosOf are those that there is a bar for.
func ratiosOf(rates map[string]float64) map[string]float64 {
	ratios := map[string]float64{}
	for _, bed := range []string{"veth", "hub"} {
		tcp := rates[bed+"/iperf3"]
		ratios[bed+"/plain:iperf3"] = rates[bed+"/fetch"] / tcp
		ratios[bed+"/tls:min(iperf3,cipher)"] = rates[bed+"/fetch-tls"] / min(tcp, rates["cipher"])
		if other := max(rates[bed+"/mooncake"], rates[bed+"/mooncake-ranges"]); other > 0 {
			ratios[bed+"/plain:mooncake"] = rates[bed+"/fetch"] / other
		}
	}
	return ratios
}

func write(t testing.TB, path string, results any) {
	t.Helper()
	text, err := json.MarshalIndent(results, "", " ")
	if err == nil {
		err = os.WriteFile(path, append(text, '\n'), 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// meters are what is measured on a bed of no machines yet.
func (b *bed) meters(name string) []*meter {
	b.t.Helper()
	for range 4 {
		b.machine()
	}
	list := []*meter{
		{name: name + "/fetch", once: b.fetcher(b.nodes[:2], "-cluster-keyring=", "-cluster-insecure=on")},
		{name: name + "/fetch-tls", once: b.fetcher(b.nodes[2:])},
	}
	from, to := b.nodes[0], b.nodes[1]
	if _, err := exec.LookPath("iperf3"); err != nil {
		b.t.Fatal("iperf3 is what this compares with: ", err)
	}
	list = append(list, &meter{name: name + "/iperf3", once: b.iperf3(from, to)})
	if *mooncakeFlag != "" {
		one, ranges := b.mooncake(from, to)
		list = append(list, &meter{name: name + "/mooncake", once: one}, &meter{name: name + "/mooncake-ranges", once: ranges})
	} else {
		b.t.Log("SKIP Mooncake: no Python with its transfer engine was named with -mooncake")
	}
	return list
}

// fetcher starts daemons on two machines, and fetches from the first to the second.
func (b *bed) fetcher(pair []*node, flags ...string) func() float64 {
	b.t.Helper()
	flags = append(flags, "-arena=320MiB", "-page-bytes=64KiB", "-promote-timeout=60s", "-cluster-name="+pair[0].name)
	for _, n := range pair {
		n.launch(flags...)
		n.open()
	}
	from, to := pair[0], pair[1]
	eventually(b.t, "two nodes are a cluster", func() bool { return from.using() == 1 && to.using() == 1 })
	return func() float64 {
		d := from.publish(fetchTokens)
		eventually(b.t, "the node knows of it", func() bool { return to.known(from) }) // a match would begin to fetch it
		took, err := to.lease(d, patience)
		if err != nil {
			b.t.Fatalf("%v\n%s", err, to.log)
		}
		return float64(model.SegmentLayout(fetchTokens).Bytes) / 1e6 / took.Seconds()
	}
}

// iperf3 sends for a second over four connections, as a fetch has.
func (b *bed) iperf3(from, to *node) func() float64 {
	b.t.Helper()
	server := exec.Command("iperf3", "-s", "-B", from.addr.String())
	s := start(b.t, from.ns, "iperf3", server)
	return func() float64 {
		if !s.running() {
			b.t.Fatalf("iperf3 ended: %s", s.log)
		}
		var answer struct {
			End struct {
				Received struct {
					Rate float64 `json:"bits_per_second"`
				} `json:"sum_received"`
			} `json:"end"`
			Error string `json:"error"`
		}
		text := runIn(b.t, to.ns, "iperf3", "-c", from.addr.String(), "-P", "4", "-R", "-J", "-t", "1")
		if err := json.Unmarshal(text, &answer); err != nil || answer.Error != "" || answer.End.Received.Rate == 0 {
			b.t.Fatalf("iperf3: %v %s: %s", err, answer.Error, text)
		}
		return answer.End.Received.Rate / 8e6
	}
}

// mooncake reads 64 MiB by its transfer engine, as one range and as ranges of 4 MiB.
func (b *bed) mooncake(from, to *node) (one, ranges func() float64) {
	b.t.Helper()
	const script = "../../mooncake/peer.py"
	size := strconv.FormatInt(model.SegmentLayout(fetchTokens).Bytes, 10)
	_, said := b.talk(from, exec.Command(*mooncakeFlag, script, "serve", from.addr.String(), size))
	at := said()
	if len(at) != 2 {
		b.t.Fatalf("mooncake serves at %v", at)
	}
	tell, said := b.talk(to, exec.Command(*mooncakeFlag, script, "read", to.addr.String(), size, at[0], at[1]))
	said() // that it is ready
	read := func(how string) float64 {
		if _, err := fmt.Fprintln(tell, how); err != nil {
			b.t.Fatal(err)
		}
		seconds, err := strconv.ParseFloat(said()[0], 64)
		if err != nil {
			b.t.Fatal(err)
		}
		return float64(model.SegmentLayout(fetchTokens).Bytes) / 1e6 / seconds
	}
	return func() float64 { return read("one") }, func() float64 { return read("ranges") }
}

// talk starts a program that is told lines, and gives the words of the lines that it says
// to us.
func (b *bed) talk(n *node, command *exec.Cmd) (tell io.Writer, said func() []string) {
	b.t.Helper()
	tell, err := command.StdinPipe()
	if err != nil {
		b.t.Fatal(err)
	}
	// A pipe of ours: that of exec.Cmd may be closed before all of it is read.
	out, in, err := os.Pipe()
	if err != nil {
		b.t.Fatal(err)
	}
	command.Stdout = in
	p := start(b.t, n.ns, "mooncake", command)
	_ = in.Close()
	b.t.Cleanup(func() { p.end(syscall.SIGKILL); _ = out.Close() })
	lines := bufio.NewScanner(out)
	return tell, func() []string {
		if err := out.SetReadDeadline(time.Now().Add(patience)); err != nil && !errors.Is(err, os.ErrNoDeadline) {
			b.t.Fatal(err)
		}
		for lines.Scan() {
			if words, ok := strings.CutPrefix(lines.Text(), "peer "); ok {
				return strings.Fields(words)
			}
		}
		b.t.Fatalf("mooncake says no more: %v\n%s", lines.Err(), p.log)
		return nil
	}
}

// cipherRate is how fast this machine seals records of TLS with the cipher that TLS 1.3
// chooses, on half of its processors: the other half opens them.
func cipherRate() float64 {
	const record, records = 16 << 10, 4 << 10
	workers := min(max(1, runtime.NumCPU()/2), 4)
	var all sync.WaitGroup
	began := time.Now()
	for range workers {
		all.Go(func() {
			block, err := aes.NewCipher(make([]byte, 16))
			if err != nil {
				panic(err)
			}
			aead, err := cipher.NewGCM(block)
			if err != nil {
				panic(err)
			}
			from, to := make([]byte, record), make([]byte, 0, record+aead.Overhead())
			nonce := make([]byte, aead.NonceSize())
			for range records {
				to = aead.Seal(to[:0], nonce, from, nil)
			}
		})
	}
	all.Wait()
	return float64(workers*record*records) / 1e6 / time.Since(began).Seconds()
}

// describe names the processor and how many there are.
func describe() string {
	text, _ := os.ReadFile("/proc/cpuinfo")
	name := "unknown processor"
	for line := range strings.Lines(string(text)) {
		if key, value, _ := strings.Cut(line, ":"); strings.TrimSpace(key) == "model name" {
			name = strings.TrimSpace(value)
			break
		}
	}
	return fmt.Sprintf("%s, %s, %d cores", runtime.GOARCH, name, runtime.NumCPU())
}
