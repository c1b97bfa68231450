package daemon

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/daemon/settings"
	"github.com/spliced-kv/spliced/gpuipc"
	"github.com/spliced-kv/spliced/policy/profile"
)

func TestClientsNeverSeeEachOthersSlotsOrStaging(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	p := testProfile(1)
	a, b := attach(t, r.Socket()), attach(t, r.Socket())
	a.register(p)
	b.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	a.publish(d)
	lease := a.lease(d)
	var composed wire.ComposeReply
	a.call(wire.OpCompose, &wire.ComposeRequest{Profile: a.profile, Layer: 0, Plan: onePlan(lease, d, 1)}, &composed)
	if bytes.Equal(a.slots.Bytes()[composed.Off:][:64], make([]byte, 64)) {
		t.Fatal("nothing was composed")
	}
	for name, region := range map[string]*gpuipc.Mapping{"slots": b.slots, "staging": b.staging} {
		if len(bytes.Trim(region.Bytes(), "\x00")) != 0 {
			t.Errorf("the second client's %s are not empty", name)
		}
	}
	// Another connection's ids name nothing.
	pending, code := a.reserve(newDocument(p, nil, 2, 64, profile.RoleFirst), 0)
	if code != wire.OK {
		t.Fatal(code)
	}
	for i, code := range b.release(lease, composed.Lease) {
		if wire.Code(code) != wire.Gone {
			t.Errorf("release of a foreign lease %d: %v", i, wire.Code(code))
		}
	}
	var aborted wire.CodesReply
	b.call(wire.OpAbort, &wire.AbortRequest{Reservations: []uint64{pending}}, &aborted)
	if wire.Code(aborted.Codes[0]) != wire.Gone {
		t.Errorf("abort of a foreign reservation: %v", wire.Code(aborted.Codes[0]))
	}
	var committed wire.CommitReply
	b.call(wire.OpCommit, b.commitRequest(pending, d.layout, d.bytes), &committed)
	if wire.Code(committed.Codes[0]) != wire.Gone {
		t.Errorf("commit into a foreign reservation: %v", wire.Code(committed.Codes[0]))
	}
	plan := onePlan(lease, d, 1)
	b.refused(wire.OpCompose, &wire.ComposeRequest{Profile: b.profile, Layer: 0, Plan: plan}, wire.Gone, "lease")
	b.refused(wire.OpCompose, &wire.ComposeRequest{Profile: b.profile, Layer: 0, Plan: wire.Plan{}, From: wire.FromSlot, FromLease: composed.Lease, FromOff: composed.Off}, wire.Gone, "slot")
	mine := b.lease(d)
	b.refused(wire.OpCompose, &wire.ComposeRequest{Profile: b.profile, Layer: 0, Into: composed.Lease, Plan: onePlan(mine, d, 1)}, wire.Gone, "slot")
	a.close()
	b.close()
	r.atRest()
}

// A client may look for a way around its read-only mapping: the descriptor
// itself, and a new one of the same file by way of /proc. Slots have results of this
// client alone, and no seal: whoever is root or the daemon's user, as we are here, opens
// them for writing.
func TestNoClientCanWriteTheArenaOrItsSlots(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	c := dialRaw(t, r.Socket())
	fds := c.mustHello(&wire.HelloRequest{MinVersion: 1, MaxVersion: 1})
	for i, name := range []string{"arena", "slots"} {
		fd := fds[i]
		if _, err := unix.Mmap(fd, 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			t.Errorf("%s: mapped for writing", name)
		}
		if _, err := unix.Pwrite(fd, []byte{1}, 0); err == nil {
			t.Errorf("%s: written", name)
		}
		if name == "slots" {
			var st unix.Stat_t
			if err := unix.Fstat(fd, &st); err != nil || st.Mode&0o377 != 0 {
				t.Errorf("slots: mode %o, %v: others may open them", st.Mode&0o777, err)
			}
			if err := unix.Ftruncate(fd, 0); err == nil {
				t.Error("slots: cut off")
			}
			continue
		}
		again, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", fd), os.O_RDWR, 0)
		if err != nil {
			continue // refused earlier is fine too
		}
		if _, err := again.WriteAt([]byte{1}, 0); err == nil {
			t.Errorf("%s: written through /proc", name)
		}
		if _, err := unix.Mmap(int(again.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED); err == nil {
			t.Errorf("%s: mapped for writing through /proc", name)
		}
		if err := again.Truncate(0); err == nil {
			t.Errorf("%s: cut off", name)
		}
		again.Close()
	}
	for _, fd := range fds {
		unix.Close(fd)
	}
}

func TestTenantsDoNotShareHits(t *testing.T) {
	r := startDaemon(t, testConfig(t), nil)
	p := testProfile(1)
	c := attach(t, r.Socket(), wire.TenantName{}, wire.TenantName{Name: "guarded", Token: "open sesame"})
	c.register(p)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	c.publish(d)
	c.tenant = c.hello.Tenants[1].ID
	if m := c.match(d.key); m.Status[0] != wire.StatusMiss {
		t.Error("another tenant's key is a hit")
	}
	if got := c.acquire(0, d.key); wire.Code(got.Codes[0]) != wire.Miss {
		t.Errorf("acquire: %v", wire.Code(got.Codes[0]))
	}
	if _, code := c.reserve(d, 0); code != wire.Invalid {
		t.Errorf("reserve with another tenant's key: %v", code)
	}
	salted := newDocument(p, c.hello.Tenants[1].Salt, 1, 64, profile.RoleFirst)
	c.publish(salted)
	c.lease(salted)
	c.close()
	r.atRest()
}

func TestRequestsOutsideOfStagingAreInvalid(t *testing.T) {
	r, c, p := startClient(t, testConfig(t), nil)
	d := newDocument(p, nil, 1, 64, profile.RoleFirst)
	for _, off := range []uint64{c.hello.StagingBytes, c.hello.StagingBytes - 4*63, 1 << 63, ^uint64(0)} {
		m := c.reserveRequest(d, 0)
		m.TokenOff[0] = off
		var reply wire.ReserveReply
		c.call(wire.OpReserve, m, &reply)
		if wire.Code(reply.Codes[0]) != wire.Invalid {
			t.Errorf("token ids at %d: %v", off, wire.Code(reply.Codes[0]))
		}
	}
	id, _ := c.reserve(d, 0)
	m := c.commitRequest(id, d.layout, d.bytes)
	for i := range m.StagingOff {
		m.StagingOff[i] = c.hello.StagingBytes - 1
	}
	var reply wire.CommitReply
	c.call(wire.OpCommit, m, &reply)
	for i, code := range reply.Codes {
		if wire.Code(code) != wire.Invalid {
			t.Errorf("row %d: %v", i, wire.Code(code))
		}
	}
	if m := c.match(d.key); m.Status[0] != wire.StatusPending {
		t.Error("refused rows changed the reservation")
	}
	c.close()
	r.atRest()
}

func TestAcquireAnswersWhatFitsAFrame(t *testing.T) {
	config := testConfig(t)
	config.Arena = 64 * settings.MiB
	r, c, p := startClient(t, config, nil)
	// Each segment answers one digest for each of its five parts.
	var keys [][32]byte
	rows := wire.MaxDigests/5 + 10
	for i := range rows {
		d := newDocument(p, nil, uint64(i), 8, profile.RoleFirst)
		c.publish(d)
		keys = append(keys, d.key)
	}
	got := c.acquire(0, keys...)
	ok, busy := 0, 0
	for i, code := range got.Codes {
		switch wire.Code(code) {
		case wire.OK:
			ok++
		case wire.Busy:
			busy++
			if got.Leases[i] != 0 || got.ExtentCount[i] != 0 {
				t.Fatalf("row %d is busy and holds something", i)
			}
		default:
			t.Fatalf("row %d: %v", i, wire.Code(code))
		}
	}
	if ok == 0 || busy == 0 {
		t.Errorf("%d rows fit, %d do not", ok, busy)
	}
	if n := r.store.Counters().Leases; n != uint64(ok) {
		t.Errorf("%d leases for %d rows", n, ok)
	}
	if rest := c.acquire(0, keys[ok:]...); strings.Contains(fmt.Sprint(rest.Codes), fmt.Sprint(uint16(wire.Busy))) {
		t.Error("the rest does not fit a frame of its own")
	}
	c.close()
	r.atRest()
}
