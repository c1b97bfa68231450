package settings

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxSecret is room for a token with white space around it.
const maxSecret = 8 << 10

// ReadSecret reads a token, without the white space around it. A FIFO or a device would
// hold up the start, or never end: only a file is read. The warning is of one that
// everybody on the machine can read.
func ReadSecret(path string) (secret, warning string, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return "", "", err
	}
	if !info.Mode().IsRegular() {
		return "", "", fmt.Errorf("%s is not a file: mode %v", path, info.Mode())
	}
	data, err := readAtMost(f, maxSecret)
	if err != nil {
		return "", "", err
	}
	if info.Mode().Perm()&0o004 != 0 {
		warning = fmt.Sprintf("%s can be read by every user of this machine: mode %#o", path, info.Mode().Perm())
	}
	secret = strings.TrimSpace(string(data))
	if secret == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	return secret, warning, err
}
