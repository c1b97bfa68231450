package fakecuda

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

//go:embed src
var sources embed.FS

// errNoCompiler is returned on a machine without cc and c++, where the library cannot be
// built.
var errNoCompiler = errors.New("no C and C++ compiler (cc, c++) to build a fake libcuda.so.1 with")

// Build returns the path of the library. The library is built once for each content of its
// sources and the kernels' sources. It is kept in the user's cache folder for all test
// binaries. Without a compiler, or with the tag nocuda, Build skips the test.
func Build(tb testing.TB) string {
	tb.Helper()
	if withoutDriver {
		tb.Skip("built with the tag nocuda")
	}
	path, err := cached()
	if errors.Is(err, errNoCompiler) {
		tb.Skip(err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return path
}

// Install builds the library and copies it to a folder as libcuda.so.1. It is for tests in
// other languages, which cannot call Build. It returns the path of the copy.
func Install(folder string) (string, error) {
	from, err := cached()
	if err != nil {
		return "", err
	}
	library, err := os.ReadFile(from)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	// The new file is renamed into place, because a process may have the old file mapped.
	scratch := filepath.Join(folder, fmt.Sprintf(".libcuda.%d", os.Getpid()))
	if err := os.WriteFile(scratch, library, 0o755); err != nil {
		return "", err
	}
	to := filepath.Join(folder, libraryName)
	return to, os.Rename(scratch, to)
}

const libraryName = "libcuda.so.1"

// cached returns the path of the library for the current sources. It builds the library if
// necessary.
func cached() (string, error) {
	units, err := units()
	if err != nil {
		return "", err
	}
	digest, err := digest(units)
	if err != nil {
		return "", err
	}
	base, err := os.UserCacheDir()
	if err != nil {
		base = os.TempDir()
	}
	folder := filepath.Join(base, "spliced-fakecuda", digest)
	path := filepath.Join(folder, libraryName)
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	// Several test binaries run at once. One of them builds the library, and the others
	// wait for it.
	lock, err := os.OpenFile(filepath.Join(folder, "lock"), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return "", err
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		return "", fmt.Errorf("lock %s: %w", lock.Name(), err)
	}
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	return path, build(units, folder)
}

// unit is a source file: a file that is compiled, or a header that it includes.
type unit struct {
	name    string // path below the folder to which it is written
	content []byte
}

// The method kernel reports whether the unit is compiled as C++. C++ units are the file
// that includes all kernels and the files of the kernels' emulation.
func (u unit) kernel() bool {
	return filepath.Base(u.name) == "spliced.cu" || strings.HasSuffix(u.name, ".cc")
}

func (u unit) compiled() bool { return strings.HasSuffix(u.name, ".c") || u.kernel() }

// units returns all sources: ours, the kernels, and the emulation of the kernels.
func units() ([]unit, error) {
	var all []unit
	err := fs.WalkDir(sources, "src", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		content, err := sources.ReadFile(path)
		all = append(all, unit{name: path, content: content})
		return err
	})
	if err != nil {
		return nil, err
	}
	folder, err := kernelFolder()
	if err != nil {
		return nil, err
	}
	kernels, err := kernelUnits(folder)
	return append(all, kernels...), err
}

// kernelFolder returns the folder with the kernels' sources. It searches from the working
// directory upwards, because a test runs in the folder of its package, which may be in a
// module below the repository's root.
func kernelFolder() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for at := dir; ; at = filepath.Dir(at) {
		folder := filepath.Join(at, "gpuipc", "cuda", "kernels")
		if _, err := os.Stat(folder); err == nil {
			return folder, nil
		}
		if at == filepath.Dir(at) {
			return "", fmt.Errorf("no gpuipc/cuda/kernels in or above %s: the kernels' sources are there", dir)
		}
	}
}

// kernelUnits reads the sources of the kernels and of their emulation.
func kernelUnits(folder string) ([]unit, error) {
	var found []unit
	for _, pattern := range []string{"*.cu", "*.h", "emulate/*.cc", "emulate/*.h"} {
		paths, err := filepath.Glob(filepath.Join(folder, pattern))
		if err != nil {
			return nil, err
		}
		for _, path := range paths {
			content, err := os.ReadFile(path)
			if err != nil {
				return nil, err
			}
			name, err := filepath.Rel(folder, path)
			if err != nil {
				return nil, err
			}
			found = append(found, unit{name: filepath.Join("kernels", name), content: content})
		}
	}
	return found, nil
}

// The flags are part of the digest. Kernels must round as a GPU does: a multiply-add is
// fused only where the source requests it. So -ffp-contract=off forbids the compiler to
// fuse others.
var (
	flags       = []string{"-O2", "-g1", "-fPIC", "-pthread", "-fvisibility=hidden", "-Wall", "-Wextra"}
	cFlags      = []string{"-std=gnu11"}
	kernelFlags = []string{"-x", "c++", "-std=c++17", "-DSPLICED_EMULATE", "-ffp-contract=off", "-fno-strict-aliasing"}
	// The library's threads run its code, so it must never be unloaded.
	linkFlags = []string{"-shared", "-pthread", "-Wl,-soname," + libraryName, "-Wl,-z,defs", "-Wl,-z,nodelete"}
)

// digest returns the name of a library. It is a hash of the compilers, the flags and the
// content of all sources.
func digest(units []unit) (string, error) {
	h := sha256.New()
	for _, compiler := range []string{"cc", "c++"} {
		version, err := exec.Command(compiler, "-v").CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("%w: %s: %v", errNoCompiler, compiler, err)
		}
		h.Write(version)
	}
	fmt.Fprintln(h, flags, cFlags, kernelFlags, linkFlags)
	for _, u := range units {
		fmt.Fprintln(h, u.name, len(u.content))
		h.Write(u.content)
	}
	return hex.EncodeToString(h.Sum(nil))[:24], nil
}

// build compiles and links in a scratch folder and renames the result into place. So an
// interrupted build leaves no incomplete library.
func build(units []unit, folder string) error {
	scratch, err := os.MkdirTemp(folder, "build")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	for _, u := range units {
		path := filepath.Join(scratch, u.name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(path, u.content, 0o644); err != nil {
			return err
		}
	}
	var objects []string
	for _, u := range units {
		if !u.compiled() {
			continue
		}
		object := u.name + ".o"
		compiler, language := "cc", cFlags
		if u.kernel() {
			compiler, language = "c++", kernelFlags
		}
		args := slices.Concat(flags, language, []string{"-c", u.name, "-o", object})
		if err := compile(scratch, compiler, args); err != nil {
			return err
		}
		objects = append(objects, object)
	}
	args := slices.Concat(linkFlags, []string{"-o", libraryName}, objects, []string{"-lm"})
	if err := compile(scratch, "c++", args); err != nil {
		return err
	}
	return os.Rename(filepath.Join(scratch, libraryName), filepath.Join(folder, libraryName))
}

func compile(dir, compiler string, args []string) error {
	command := exec.Command(compiler, args...)
	command.Dir = dir
	var output bytes.Buffer
	command.Stdout, command.Stderr = &output, &output
	if err := command.Run(); err != nil {
		return fmt.Errorf("%s %s: %w\n%s", compiler, strings.Join(args, " "), err, output.Bytes())
	}
	return nil
}
