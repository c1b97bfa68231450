package settings

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// maxSecret, in bytes, has space for a token with white space around it.
const maxSecret = 8 << 10

// ReadSecret reads a token with ReadRegular, and removes white space around it.
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

// ReadRegular reads a regular file. It refuses a file that is larger than the given number of
// bytes, and a FIFO or a device, which could delay the start forever. If all users can read the
// file, it also returns a warning.
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
		return nil, "", fmt.Errorf("%s is not a regular file: mode %v", path, info.Mode())
	}
	data, err = readAtMost(f, most)
	if err != nil {
		return nil, "", err
	}
	if info.Mode().Perm()&0o004 != 0 {
		warning = fmt.Sprintf("%s is world-readable: mode %#o", path, info.Mode().Perm())
	}
	return data, warning, nil
}
