package volume

import (
	"errors"
	"fmt"
	"io/fs"
)

// newIndexDir holds a new catalogue until it replaces the old one.
const newIndexDir = indexDir + ".new"

// OpenCatalog opens the catalogue. It returns tier.ErrCorrupt if the catalogue is missing
// or damaged.
func (v *Volume) OpenCatalog() error {
	if err := v.haveCatalog(); err != nil {
		return err
	}
	return v.openCatalog(indexDir)
}

// CloseCatalog closes the catalogue, if it is open.
func (v *Volume) CloseCatalog() error {
	if v.Catalog == nil {
		return nil
	}
	err := v.Catalog.Close()
	v.Catalog = nil
	return err
}

// BeginCatalog creates and opens a new catalogue, which replaces the old one when
// ExchangeCatalog is called.
func (v *Volume) BeginCatalog() error {
	if err := v.index.RemoveAll(v.path(newIndexDir)); err != nil {
		return err
	}
	return v.openCatalog(newIndexDir)
}

// ExchangeCatalog closes the new catalogue and replaces the old one with it. The old
// catalogue is kept under the returned name; "" = there was none. After a crash between the
// two renames the directory has no catalogue, and the caller starts again with BeginCatalog.
func (v *Volume) ExchangeCatalog() (old string, err error) {
	if err := v.CloseCatalog(); err != nil {
		return "", err
	}
	for i := 1; ; i++ {
		old = fmt.Sprintf("%s.old-%d", indexDir, i)
		if _, err := v.index.Stat(v.path(old)); errors.Is(err, fs.ErrNotExist) {
			break
		} else if err != nil {
			return "", err
		}
	}
	err = v.index.Rename(v.path(indexDir), v.path(old))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		old = ""
	case err != nil:
		return "", err
	}
	if err := v.index.Rename(v.path(newIndexDir), v.path(indexDir)); err != nil {
		return old, err
	}
	return old, syncDir(v.index, v.dir)
}

// IndexPath returns the path of the catalogue, for messages.
func (v *Volume) IndexPath() string { return v.path(indexDir) }
