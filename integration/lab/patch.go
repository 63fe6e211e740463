package lab

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
)

// patch is a package of a module that is built of other files than it is served with.
type patch struct {
	module string
	folder string // inside the module; all below it goes
	files  string // the folder under the lab's folder with what takes its place
}

// patched copies the patched modules into dir, with a go.mod that refers to the copies, and returns
// the path of that go.mod; empty without patches.
func (c component) patched(ctx context.Context, source, dir string) (modfile string, err error) {
	if len(c.patches) == 0 {
		return "", nil
	}
	module := filepath.Join(source, c.module)
	for _, name := range []string{"go.mod", "go.sum"} {
		if err := copyOut(filepath.Join(module, name), filepath.Join(dir, name)); err != nil {
			return "", err
		}
	}
	modfile = filepath.Join(dir, "go.mod")
	for i, p := range c.patches {
		to := filepath.Join(dir, fmt.Sprint("module-", i))
		if err := p.copy(ctx, module, source, to); err != nil {
			return "", fmt.Errorf("patch %s: %w", p.module, err)
		}
		if _, err := goCommand(ctx, module, nil, "mod", "edit", "-replace="+p.module+"="+to, modfile); err != nil {
			return "", err
		}
	}
	return modfile, nil
}

// copy makes the patched copy of a module, whose version another one says.
func (p patch) copy(ctx context.Context, by, source, to string) error {
	text, err := goCommand(ctx, by, nil, "mod", "download", "-json", p.module)
	if err != nil {
		return err
	}
	var from struct{ Dir string }
	if err := json.Unmarshal(text, &from); err != nil {
		return err
	}
	if err := os.CopyFS(to, os.DirFS(from.Dir)); err != nil {
		return err
	}
	folder := filepath.Join(to, filepath.FromSlash(p.folder))
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	return os.CopyFS(folder, os.DirFS(filepath.Join(source, filepath.FromSlash(p.files))))
}
