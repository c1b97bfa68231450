// Command build builds the fake libcuda.so.1 into a folder: go run
// ./gpuipc/cuda/fakecuda/build FOLDER. It runs anywhere in the module.
package main

import (
	"fmt"
	"os"

	"github.com/spliced-kv/spliced/gpuipc/cuda/fakecuda"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: build FOLDER")
		os.Exit(2)
	}
	path, err := fakecuda.Install(os.Args[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	fmt.Println(path)
}
