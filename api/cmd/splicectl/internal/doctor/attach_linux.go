package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/api"
	"github.com/spliced-kv/spliced/connector/trust"
	"github.com/spliced-kv/spliced/connector/wire"
	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
	"github.com/spliced-kv/spliced/policy/profile"
)

const answerTimeout = 2 * time.Second

// visit is the state of one run against a daemon.
type visit struct {
	options Options
	conn    *seqpacket.Conn
	hello   wire.HelloReply
	files   []*os.File // pools, slots, staging
	gpus    []api.GPU  // as the daemon reports; nil = none, or not reported
	frame   []byte     // buffer of the hello reply, to whose bytes hello refers
}

func (v *visit) close() {
	for _, f := range v.files {
		f.Close()
	}
	v.files = nil
	if v.conn != nil {
		v.conn.Close()
		v.conn = nil
	}
}

// checkSocket inspects the path before it connects, to find the remedy that fits.
func checkSocket(_ context.Context, v *visit) []Check {
	const name = "socket"
	path := v.options.Socket
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []Check{fail(name, "start spliced, name its socket with -socket or SPLICED_SOCKET, or try --self", "%s does not exist", path)}
	case err != nil:
		return []Check{fail(name, "check the permissions of its directory", "%v", err)}
	case info.Mode().Type() != fs.ModeSocket:
		return []Check{fail(name, "name the daemon's socket with -socket", "%s is not a socket", path)}
	}
	v.conn, err = seqpacket.Dial(path, answerTimeout)
	switch {
	case errors.Is(err, fs.ErrPermission):
		return []Check{fail(name, "run as a member of the group that owns the socket", "%s has mode %v: %v", path, info.Mode().Perm(), err)}
	case errors.Is(err, unix.ECONNREFUSED):
		return []Check{fail(name, "the daemon that made it is gone: start spliced again", "nobody answers on %s", path)}
	case err != nil:
		return []Check{fail(name, "is this the engine socket of spliced?", "%s: %v", path, err)}
	}
	if err := trust.Check(v.conn.Fd(), path, nil); err != nil {
		v.conn.Close()
		v.conn = nil
		return []Check{fail(name, "docs/security.md explains which processes are trusted as the daemon", "%v", err)}
	}
	return []Check{ok(name, "%s, mode %v", path, info.Mode().Perm()), checkPeer(v.conn.Fd())}
}

// checkPeer reports which process serves the socket.
func checkPeer(fd int) Check {
	const name = "peer credentials"
	cred, err := unix.GetsockoptUcred(fd, unix.SOL_SOCKET, unix.SO_PEERCRED)
	if err != nil {
		return fail(name, "the kernel must give SO_PEERCRED on unix sockets", "%v", err)
	}
	where := fmt.Sprintf("process %d", cred.Pid)
	if cred.Pid == 0 {
		where = "a process of another PID namespace"
	}
	return ok(name, "served by %s, uid %d gid %d; we are uid %d gid %d", where, cred.Uid, cred.Gid, os.Geteuid(), os.Getegid())
}

// checkAttach sends hello as any client does.
func checkAttach(_ context.Context, v *visit) []Check {
	const name = "hello"
	request := wire.HelloRequest{MinVersion: wire.Version, MaxVersion: wire.Version, Client: profile.TrialClient,
		StagingBytes: 1 << 20, SlotBytes: 1 << 20, Features: wire.FeatureDevice, Tenants: []wire.TenantName{{Name: v.options.Tenant, Token: v.options.TenantToken}}}
	v.conn.AllowDescriptors(seqpacket.MaxDescriptors)
	fds, err := v.call(&wire.Header{Op: wire.OpHello, Request: 1}, &request, &v.hello)
	if err != nil {
		return []Check{fail(name, helloRemedy(err), "%v", err)}
	}
	for i, fd := range fds {
		v.files = append(v.files, os.NewFile(uintptr(fd), fmt.Sprintf("region %d", i)))
	}
	if len(fds) != wire.HelloDescriptors {
		return []Check{fail(name, "client and daemon differ: use one release of both", "%d descriptors, want %d", len(fds), wire.HelloDescriptors)}
	}
	return []Check{ok(name, "%s, protocol %d, connection %d", v.hello.Server, v.hello.Version, v.hello.Connection)}
}

// helloRemedy returns the remedy for a failed hello.
func helloRemedy(err error) string {
	var refused refusal
	errors.As(err, &refused)
	switch refused.code {
	case wire.Busy:
		return "stop another client, or raise max-connections"
	case wire.Full:
		return "raise connection-memory or the limit that the daemon names, or stop another client"
	case wire.Denied:
		if strings.HasPrefix(refused.text, "tenant ") {
			return "name a tenant of this node with --tenant, and the file of its token with --tenant-token-file"
		}
		return "run as a user that allow-uids or allow-gids names"
	case wire.Unavailable:
		return "start the daemon again, or end its drain with splicectl drain --undo"
	}
	return "the daemon's log says why; client and daemon must be of one release"
}

// refusal is an error that the daemon answered.
type refusal struct {
	code wire.Code
	text string
}

func (r refusal) Error() string { return fmt.Sprintf("%s: %s", r.code, r.text) }

// call sends one request and decodes its reply; the caller owns the descriptors.
func (v *visit) call(h *wire.Header, request, reply wire.Message) ([]int, error) {
	frame, err := wire.AppendFrame(nil, h, request)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(v.conn.SetSendTimeout(answerTimeout), v.conn.SetRecvTimeout(answerTimeout)); err != nil {
		return nil, err
	}
	if err := v.conn.Send(frame, nil); err != nil {
		return nil, fmt.Errorf("send: %w", err)
	}
	v.frame = make([]byte, wire.MaxFrame)
	n, fds, err := v.conn.Recv(v.frame)
	if err != nil {
		return nil, fmt.Errorf("no answer: %w", err)
	}
	got, body, err := wire.ParseHeader(v.frame[:n])
	switch {
	case err != nil:
	case got.Code != wire.OK:
		err = refusal{got.Code, wire.ErrorText(body)}
	case got.Op != h.Op || got.Request != h.Request:
		err = fmt.Errorf("answer to %s %d, asked %s %d", got.Op, got.Request, h.Op, h.Request)
	default:
		err = reply.Decode(body)
	}
	if err != nil {
		seqpacket.CloseAll(fds)
		return nil, err
	}
	return fds, nil
}

// checkMemory checks the three regions that a client gets.
func checkMemory(_ context.Context, v *visit) []Check {
	var checks []Check
	sizes := []uint64{v.hello.ArenaBytes, v.hello.SlotBytes, v.hello.StagingBytes}
	for i, name := range []string{"pools", "slots", "staging"} {
		checks = append(checks, checkRegion(name, v.files[i], int64(sizes[i]), name == "staging"))
	}
	return checks
}

func checkRegion(name string, f *os.File, size int64, ours bool) Check {
	const remedy = "do not use this daemon: report it with the output of splicectl version"
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil || st.Size < size {
		return fail(name, remedy, "has %d bytes, the daemon says %d (%v)", st.Size, size, err)
	}
	seals, err := unix.FcntlInt(f.Fd(), unix.F_GET_SEALS, 0)
	if err != nil || seals&unix.F_SEAL_SHRINK == 0 {
		return fail(name, remedy, "could shrink under its readers (seals %#x, %v)", seals, err)
	}
	if ours {
		mem, err := unix.Mmap(int(f.Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return fail(name, remedy, "cannot be mapped for writing: %v", err)
		}
		mem[0] = 1
		if err := unix.Munmap(mem); err != nil {
			return fail(name, remedy, "%v", err)
		}
		return ok(name, "%d MiB, writable by this client, cannot shrink", size>>20)
	}
	if name == "slots" { // has only this client's own results, so it is not sealed against its user
		if err := tryWritingAs("as received", f); err != nil {
			return fail(name, remedy, "%v", err)
		}
		if st.Mode&0o377 != 0 {
			return fail(name, remedy, "mode %#o: others may open it", st.Mode&0o777)
		}
		return ok(name, "%d MiB, read-only", size>>20)
	}
	if err := tryWriting(f); err != nil {
		return fail(name, remedy, "%v", err)
	}
	return ok(name, "%d MiB, read-only, also when reopened", size>>20)
}

// checkAdmin queries the admin socket as an operator's tools do.
func checkAdmin(ctx context.Context, v *visit) []Check {
	const name = "admin"
	const remedy = "run as the daemon's user, or name the admin address with -admin"
	if v.options.Admin == nil {
		return []Check{warn(name, remedy, "no admin address")}
	}
	ctx, cancel := context.WithTimeout(ctx, answerTimeout)
	defer cancel()
	st, err := v.options.Admin.Status(ctx)
	switch {
	case err != nil:
		return []Check{warn(name, remedy, "%v", err)}
	case st.BootEpoch != v.hello.BootEpoch:
		return []Check{warn(name, remedy, "the admin address belongs to another daemon (node %s)", st.Node)}
	}
	checks := []Check{ok(name, "node %s, version %s, up since %s", st.Node, st.Version, st.Started.Format(time.RFC3339))}
	v.gpus = st.GPUs
	for _, c := range st.Checks {
		if c.State != api.CheckOK {
			checks = append(checks, warn("daemon: "+c.Name, remedyOf(c.Name), "%s", c.Detail))
		}
	}
	return checks
}

// remedyOf returns the remedy for a degraded check of the daemon.
func remedyOf(check string) string {
	if check == "hbm" {
		return "see docs/gpu.md, which lists errors by their code, and the hbm- settings"
	}
	return "see docs/operations or the daemon's log"
}
