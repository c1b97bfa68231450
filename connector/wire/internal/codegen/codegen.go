// Package codegen generates the codecs of both languages and the tables of docs/protocol.md
// from package schema.
package codegen

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spliced-kv/spliced/connector/wire/schema"
)

// File is a generated file, or a file with generated parts. Path is relative to the repository's
// root.
type File struct {
	Path string
	Data []byte
}

const (
	goDir     = "connector/wire"
	pythonDir = "connector/python/src/spliced_connector"
	page      = "docs/protocol.md"
)

// Files generates all files. It reads docs/protocol.md below root and replaces the content
// between its markers.
func Files(p *schema.Protocol, root string) ([]File, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	var files []File
	for _, g := range []struct {
		path string
		make func(*schema.Protocol) ([]byte, error)
	}{
		{goDir + "/numbers_gen.go", goNumbers},
		{goDir + "/operations_gen.go", goOperations},
		{goDir + "/messages_gen.go", goMessages},
		{goDir + "/codec_gen.go", goCodec},
		{pythonDir + "/codes.py", pythonCodes},
		{pythonDir + "/client/terms.py", pythonTerms},
		{pythonDir + "/wire/numbers.py", pythonNumbers},
		{pythonDir + "/wire/messages.py", pythonMessages},
		{pythonDir + "/wire/__init__.py", pythonPackage},
	} {
		data, err := g.make(p)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", g.path, err)
		}
		files = append(files, File{g.path, data})
	}
	old, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		return nil, err
	}
	data, err := protocolPage(p, string(old))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", page, err)
	}
	return append(files, File{page, []byte(data)}), nil
}
