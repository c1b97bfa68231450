package settings

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxSecret is room for a token with white space around it.
const maxSecret = 8 << 10

// ReadSecret reads a token, without the white space around it, as ReadRegular does.
func ReadSecret(path string) (secret, warning string, err error) {
	data, warning, err := ReadRegular(path, maxSecret)
	if err != nil {
		return "", "", err
	}
	secret = strings.TrimSpace(string(data))
	if secret == "" {
		err = fmt.Errorf("%s is empty", path)
	}
	return secret, warning, err
}

// ReadRegular reads a file of at most so many bytes. A FIFO or a device would hold up the
// start, or never end: only a file is read. The warning is of one that everybody on the
// machine can read.
func ReadRegular(path string, most int64) (data []byte, warning string, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, "", &os.PathError{Op: "open", Path: path, Err: err}
	}
	f := os.NewFile(uintptr(fd), path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, "", err
	}
	if !info.Mode().IsRegular() {
		return nil, "", fmt.Errorf("%s is not a file: mode %v", path, info.Mode())
	}
	data, err = readAtMost(f, most)
	if err != nil {
		return nil, "", err
	}
	if info.Mode().Perm()&0o004 != 0 {
		warning = fmt.Sprintf("%s can be read by every user of this machine: mode %#o", path, info.Mode().Perm())
	}
	return data, warning, nil
}
