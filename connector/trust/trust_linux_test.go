package trust

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tree makes directories below a new one; each is "path mode [uid]", or "path -> target".
func tree(t *testing.T, entries ...string) string {
	t.Helper()
	root := t.TempDir()
	for _, e := range entries {
		words := strings.Fields(e)
		path := filepath.Join(root, words[0])
		if words[1] == "->" {
			must(t, os.Symlink(strings.ReplaceAll(words[2], "ROOT", root), path))
			continue
		}
		must(t, os.Mkdir(path, 0o700))
		if len(words) == 3 {
			if os.Geteuid() != 0 {
				t.Skip("SKIP: only root can give directories away")
			}
			must(t, os.Chown(path, map[string]int{"mallory": 1001, "spliced": 1002, "alice": 1003}[words[2]], -1))
		}
		var mode uint32
		for _, digit := range words[1] {
			mode = mode<<3 | uint32(digit-'0')
		}
		must(t, unix.Chmod(path, mode))
	}
	return root
}

// Where others could have put the socket there is nobody to believe.
func TestPathsThatOthersCouldHaveReplaced(t *testing.T) {
	self := uint32(os.Geteuid())
	for name, test := range map[string]struct {
		entries []string
		socket  string
		wrong   string // "" = nobody else could
	}{
		"a directory of our own":                   {[]string{"a 0700"}, "a/s", ""},
		"one that a group may enter":               {[]string{"a 2750"}, "a/s", ""},
		"one below it":                             {[]string{"a 0755", "a/b 0700"}, "a/b/s", ""},
		"where a group may add, not replace":       {[]string{"a 3770"}, "a/s", ""},
		"a group's":                                {[]string{"a 2770"}, "a/s", "could have replaced files in ROOT/a"},
		"everybody's":                              {[]string{"a 0777"}, "a/s", "could have replaced files in ROOT/a"},
		"an emptyDir with fsGroup":                 {[]string{"a 2777", "a/b 2750"}, "a/b/s", "could have replaced files in ROOT/a"},
		"below a sticky one, our own":              {[]string{"a 1777", "a/b 0700"}, "a/b/s", ""},
		"below a sticky one, a stranger's":         {[]string{"a 1777", "a/b 0755 mallory"}, "a/b/s", "is owned by user 1001"},
		"a service's that root made":               {[]string{"a 0755", "a/b 2750 spliced"}, "a/b/s", ""},
		"below a third user's":                     {[]string{"a 0755 alice", "a/b 2750 spliced"}, "a/b/s", "user 1003 could have replaced"},
		"through a link of ours":                   {[]string{"a 0700", "l -> a"}, "l/s", ""},
		"through a link to what everybody writes":  {[]string{"a 0777", "l -> ROOT/a"}, "l/s", "could have replaced files in ROOT/a"},
		"through a link and back up from its goal": {[]string{"a 0777", "a/b 0700", "l -> a/b"}, "l/../s", "could have replaced files in ROOT/a"},
		"a circle of links":                        {[]string{"l -> m", "m -> l"}, "l/s", "symbolic links"},
		"one that is not there":                    {nil, "a/s", "no such file"},
	} {
		t.Run(name, func(t *testing.T) {
			root := tree(t, test.entries...)
			_, err := ownerOf(root+"/"+test.socket, self)
			want := strings.ReplaceAll(test.wrong, "ROOT", root)
			if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
				t.Errorf("said %v, want %q", err, want)
			}
		})
	}
}

// listening returns a descriptor that is connected to a socket that this process
// listens on, at path.
func listening(t *testing.T, path string) int {
	t.Helper()
	l, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(l) })
	address := &unix.SockaddrUnix{Name: path}
	must(t, errors.Join(unix.Bind(l, address), unix.Listen(l, 1)))
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	must(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	must(t, unix.Connect(fd, address))
	return fd
}

func TestAnExpectedUserAloneIsBelieved(t *testing.T) {
	root := tree(t, "open 0777", "own 0700")
	self := uint32(os.Geteuid())
	other := self + 1
	open, own := root+"/open/s", root+"/own/s"
	openFD, ownFD := listening(t, open), listening(t, own)
	t.Setenv(UIDEnv, "")
	if err := Check(ownFD, own, nil); err != nil {
		t.Errorf("in a directory of our own: %v", err)
	}
	err := Check(openFD, open, nil)
	if !errors.Is(err, ErrStranger) || !strings.Contains(err.Error(), "set "+UIDEnv) || strings.Contains(err.Error(), "\n") {
		t.Errorf("where others may write: %v", err)
	}
	if err := Check(openFD, open, &self); err != nil {
		t.Errorf("the expected user: %v", err)
	}
	for _, c := range []struct {
		fd   int
		path string
	}{{openFD, open}, {ownFD, own}} {
		if err := Check(c.fd, c.path, &other); !errors.Is(err, ErrStranger) {
			t.Errorf("%s, another user than expected: %v", c.path, err)
		}
	}
	for _, text := range []string{"x", "-1", "4294967296"} {
		t.Setenv(UIDEnv, text)
		if err := Check(ownFD, own, nil); !errors.Is(err, ErrStranger) || !strings.Contains(err.Error(), "not a user id") {
			t.Errorf("%s=%s: %v", UIDEnv, text, err)
		}
	}
}

// must ends a test at what has to work for it to go on. It costs a benchmark nothing.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}
