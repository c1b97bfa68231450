package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spliced-kv/spliced/scripts/lab/bench/baseline"
	"github.com/spliced-kv/spliced/scripts/lab/bench/machine"
	"golang.org/x/sys/unix"
)

const (
	busyPhase  = 250 * time.Millisecond // long compared with one transfer of the load
	busyRounds = 10
)

// busyRows matches segments that are in memory while writers and readers keep the daemon's disk
// busy. It compares this with matches while the disk is idle, and while the disk is busy with
// plain transfers that do not involve the daemon. The latter shows how much of the cost is due
// to the machine.
func busyRows(ctx context.Context, s *session) (err error) {
	d, err := machine.NewScratch(s.options.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Remove()) }()
	l, err := startOnDisk(ctx, s, d.Path("tier"), "-arena", "256MiB")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	match, err := l.resident(ctx)
	if err != nil {
		return err
	}
	load, err := startLoad(ctx, d, l.daemon.Socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, load.stop()) }()
	node, plain := &busyPart{kind: loadNode}, &busyPart{kind: loadPlain}
	phase := during(busyPhase, match)
	device := deviceOf(d.Dir)
	got, err := alternate(s.rounds(busyRounds), phase, node.during(load, device, phase), plain.during(load, device, phase))
	if err != nil {
		return err
	}
	s.addBusy(got, node, plain)
	return nil
}

// busyPart records how busy one kind of load has kept the disk.
type busyPart struct {
	kind          string
	written, read int64
	seconds, disk float64 // elapsed time, and time that the disk was busy
}

// during returns a function that runs phase while load keeps the disk busy, and returns the
// samples of phase. It adds the elapsed time, the disk's busy time, and the bytes that the load
// wrote and read, to b.
func (b *busyPart) during(load *loader, device blockDevice, phase func() ([]float64, error)) func() ([]float64, error) {
	return func() (samples []float64, err error) {
		before, begin := device.busy(), time.Now()
		written, read, err := load.during(b.kind, func() (err error) { samples, err = phase(); return err })
		b.seconds += time.Since(begin).Seconds()
		b.disk += device.busy() - before
		b.written += written
		b.read += read
		return samples, err
	}
}

func (s *session) addBusy(got [][]float64, node, plain *busyPart) {
	idle := got[0]
	floor, floor99 := median(idle), quantile(idle, 0.99)
	s.add(
		row("match_32_p50_disk_busy", "µs", median(got[1]), floor, bar{}),
		row("match_32_p99_disk_busy", "µs", quantile(got[1], 0.99), floor99, bar{ratioAtMost: 1.5}),
		row("match_32_p99_plain_busy", "µs", quantile(got[2], 0.99), floor99, bar{}),
	)
	for _, b := range []*busyPart{node, plain} {
		name := "disk_busy_" + b.kind
		s.add(
			row(name+"_written", "GB/s", float64(b.written)/b.seconds/1e9, 0, bar{}),
			row(name+"_read", "GB/s", float64(b.read)/b.seconds/1e9, 0, bar{}),
		)
		if b.disk == 0 {
			s.skip(name+"_share", "no time of the disk is known")
			continue
		}
		s.add(row(name+"_share", "%", 100*b.disk/b.seconds, 0, bar{}))
	}
}

// startLoad starts the load process for a daemon, with a file for plain transfers that has been
// written once.
func startLoad(ctx context.Context, d *machine.Scratch, socket string) (*loader, error) {
	path, err := d.Fallocated("plain", loadFile)
	if err != nil {
		return nil, err
	}
	memory, err := machine.PageAligned(loadFile)
	if err != nil {
		return nil, err
	}
	t := baseline.Transfer{Path: path, Write: true, Bytes: loadFile, Block: tierBlock, Workers: 1}
	if _, err := t.Run(ctx, memory); err != nil {
		return nil, errors.Join(err, machine.Unmap(memory))
	}
	if err := machine.Unmap(memory); err != nil {
		return nil, err
	}
	return startLoader(socket, path)
}

// resident puts small segments and leases them, so that they stay in memory, and returns a
// function that matches them.
func (l *local) resident(ctx context.Context) (func() error, error) {
	var err error
	if l.small, err = l.model(ctx, "bench-small", 1, smallHeads, smallTokens); err != nil {
		return nil, err
	}
	keys, err := l.putMany(ctx, l.small, fewKeys)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if _, err := l.acquire(ctx, l.small, key, false); err != nil {
			return nil, fmt.Errorf("hold: %w", err)
		}
	}
	return l.matcher(ctx, keys), nil
}

// blockDevice is the directory of a block device in /sys; empty if unknown.
type blockDevice string

// deviceOf returns the block device of a directory.
func deviceOf(dir string) blockDevice {
	var st unix.Stat_t
	if unix.Stat(dir, &st) != nil {
		return ""
	}
	path := fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(st.Dev), unix.Minor(st.Dev))
	if _, err := os.Stat(path + "/stat"); err != nil {
		return ""
	}
	return blockDevice(path)
}

// busy returns the seconds for which a device has been busy so far.
func (d blockDevice) busy() float64 {
	if d == "" {
		return 0
	}
	text, err := os.ReadFile(string(d) + "/stat")
	if err != nil {
		return 0
	}
	return busySeconds(string(text))
}

// busySeconds returns the tenth field of a device's stat file, which is in milliseconds, as
// seconds.
func busySeconds(stat string) float64 {
	fields := strings.Fields(stat)
	var ms int64
	if len(fields) < 10 {
		return 0
	}
	if _, err := fmt.Sscan(fields[9], &ms); err != nil {
		return 0
	}
	return float64(ms) / 1e3
}
