package socket

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"github.com/spliced-kv/spliced/connector/wire/seqpacket"
)

// guardEvery is the interval between checks of a path. A check is two system calls.
const guardEvery = time.Second

// Guard restores the path whenever it does not lead to this socket, until ctx ends. It logs that as
// an error: clients that trust the process that replaced the socket (see package trust) may have
// taken it for the daemon.
func (s *Socket) Guard(ctx context.Context, log zerolog.Logger) {
	GuardPath(ctx, log.With().Str("socket", s.Path).Logger(), "the engine socket", s.takeBack)
}

// GuardPath calls the function takeBack once a second until ctx ends, and logs what it did.
// takeBack makes the path lead to the socket again. It returns a description of what was at the
// path instead; "" = nothing was wrong. The parameter what names the socket in the log. An error
// that persists is logged once.
func GuardPath(ctx context.Context, log zerolog.Logger, what string, takeBack func() (found string, err error)) {
	tick := time.NewTicker(guardEvery)
	defer tick.Stop()
	said := ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		switch found, err := takeBack(); {
		case err != nil:
			if err.Error() != said {
				log.Error().Str("found", found).Err(err).Msg(what + " was replaced or removed and cannot be restored: clients do not reach this daemon")
			}
			said = err.Error()
		case found != "":
			said = ""
			log.Error().Str("found", found).Msg(what + " was replaced or removed: restored")
		default:
			said = ""
		}
	}
}

// Replaced returns how often the path was found to lead elsewhere.
func (s *Socket) Replaced() uint64 { return s.replaced.Load() }

// Trouble returns why clients cannot reach the daemon by the path; "" = they can.
func (s *Socket) Trouble() string {
	if text := s.trouble.Load(); text != nil {
		return *text
	}
	return ""
}

// takeBack makes the path lead to this socket again. The result found describes what was at the
// path instead; "" = nothing was wrong.
func (s *Socket) takeBack() (found string, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.mu.stopped || s.oursLocked() {
		s.trouble.Store(nil)
		return "", nil
	}
	found = whatIs(s.Path)
	if s.trouble.Load() == nil {
		s.replaced.Add(1)
	}
	if err = s.rebindLocked(); err != nil {
		text := fmt.Sprintf("%s is not the socket of this daemon any more (%s): %v", s.Path, found, err)
		s.trouble.Store(&text)
		return found, err
	}
	s.trouble.Store(nil)
	return found, nil
}

// rebindLocked replaces what is at the path by a new socket. Connections that wait on the old
// socket to be accepted end, and their clients reconnect.
func (s *Socket) rebindLocked() error {
	lock, err := s.reclaimDirLocked()
	if err != nil {
		return err
	}
	next := s.Path + ".new"
	if err = os.Remove(next); errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	var listener *seqpacket.Listener
	if err == nil {
		listener, err = seqpacket.Listen(next, 0o660, s.backlog)
	}
	if err == nil {
		if err = unix.Rename(next, s.Path); err != nil { // atomic: there is a socket at any time
			err = errors.Join(fmt.Errorf("replace %s: %w", s.Path, err), listener.Close(), unix.Unlink(next))
		}
	}
	old := s.mu.listener
	if err == nil {
		err = s.adoptLocked(listener)
	}
	if err != nil {
		if lock != s.mu.lock {
			err = errors.Join(err, lock.Close())
		}
		return err
	}
	if lock != s.mu.lock {
		s.mu.lock.Close()
		s.mu.lock = lock
	}
	return old.Close()
}

// reclaimDirLocked makes sure that the path's directory is suitable, and returns the lock of the
// path in it. If another daemon has started and holds that lock, it returns an error.
func (s *Socket) reclaimDirLocked() (*os.File, error) {
	dir := filepath.Dir(s.Path)
	var st unix.Stat_t
	err := unix.Stat(dir, &st)
	if err == nil && same(&st, &s.mu.dir) {
		return s.mu.lock, nil
	}
	if err == nil && int(st.Uid) != os.Geteuid() && s.mu.dir.Uid != st.Uid {
		// Another user has replaced the directory. The parent is therefore writable for that user, and for
		// this one too.
		if err := os.Rename(dir, fmt.Sprintf("%s.replaced-%d-%d", dir, os.Getpid(), s.replaced.Load())); err != nil {
			return nil, err
		}
	}
	if err := prepareDir(s.from); err != nil {
		return nil, err
	}
	if err := unix.Stat(dir, &st); err != nil {
		return nil, err
	}
	if st.Gid != s.dirGID && int(st.Uid) == os.Geteuid() {
		// With this group, users who may connect have access to the socket.
		if err := unix.Chown(dir, -1, int(s.dirGID)); err != nil {
			return nil, fmt.Errorf("group of %s: %w", dir, err)
		}
		if err := setMode(dir, st.Mode&0o7777); err != nil { // chown has cleared setgid
			return nil, err
		}
	}
	return lockPath(s.Path + ".lock")
}

// whatIs describes what is at a path, for operators.
func whatIs(path string) string {
	var st unix.Stat_t
	switch err := unix.Lstat(path, &st); {
	case errors.Is(err, unix.ENOENT):
		return "nothing"
	case err != nil:
		return err.Error()
	case st.Mode&unix.S_IFMT == unix.S_IFSOCK:
		return fmt.Sprintf("a socket of user %d", st.Uid)
	}
	return fmt.Sprintf("a file of user %d, mode %#o", st.Uid, st.Mode)
}
