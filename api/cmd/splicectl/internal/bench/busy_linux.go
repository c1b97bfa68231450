package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

const (
	busyMatches = 1500 // of a phase
	busyRounds  = 12
)

// busyRows matches segments that are in memory while the daemon's disk is as busy
// as writers and readers make it, beside the same when it is idle.
func busyRows(ctx context.Context, s *session) (err error) {
	d, err := newScratch(s.options.Dir)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.remove()) }()
	l, err := startOnDisk(ctx, s, d.path("tier"), "-arena", "256MiB")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.stop()) }()
	match, err := l.resident(ctx)
	if err != nil {
		return err
	}
	load, err := startLoader(l.daemon.Socket)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, load.stop()) }()
	device := deviceOf(d.dir)
	phase := each(busyMatches, match)
	var moved [2]int64
	var busyFor, diskFor float64
	got, err := alternate(s.rounds(busyRounds), phase, func() (samples []float64, err error) {
		before, begin := device.busy(), time.Now()
		written, read, err := load.during(func() (err error) { samples, err = phase(); return err })
		busyFor += time.Since(begin).Seconds()
		diskFor += device.busy() - before
		moved[0] += written
		moved[1] += read
		return samples, err
	})
	if err != nil {
		return err
	}
	idle, busy := got[0], got[1]
	s.add(
		row("match_32_p50_disk_busy", "µs", median(busy), median(idle), bar{}),
		row("match_32_p99_disk_busy", "µs", quantile(busy, 0.99), quantile(idle, 0.99), bar{ratioAtMost: 1.5}),
		row("disk_busy_written", "GB/s", float64(moved[0])/busyFor/1e9, 0, bar{}),
		row("disk_busy_read", "GB/s", float64(moved[1])/busyFor/1e9, 0, bar{}),
	)
	if device == "" {
		s.skip("disk_busy_share", "no block device is known for "+d.dir)
		return nil
	}
	s.add(row("disk_busy_share", "%", 100*diskFor/busyFor, 0, bar{}))
	return nil
}

// resident puts small segments and holds them, so that they stay in memory, and
// answers what matches them.
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

// blockDevice is a directory of /sys; empty when not known.
type blockDevice string

// deviceOf is the block device below a directory.
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

// busy is the seconds that a device has had something to do so far.
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

// busySeconds reads the tenth field of a device's stat, in milliseconds.
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
