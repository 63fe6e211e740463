// Command house measures the product's code: its size, its functions, what its packages
// export, and how often a contract changes its shape. It reads files as they are, without
// tests and generated code.
//
//	go run . ROOT
package main

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/scanner"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "house:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	quiet := len(args) > 0 && args[0] == "-q"
	if quiet {
		args = args[1:]
	}
	if len(args) != 1 {
		return fmt.Errorf("want the root of the repository, got %q", args)
	}
	h := house{root: args[0], packages: map[string]*room{}, interfaces: map[name]*ast.InterfaceType{}}
	if err := h.walk(); err != nil {
		return err
	}
	if !quiet {
		if err := h.print(); err != nil {
			return err
		}
	}
	return h.check()
}

// The bounds: lines of a package and of a function, methods of an interface.
const (
	maxLines    = 5000
	maxFunction = 60
	maxMethods  = 5
)

// roomier are packages with a bound of their own.
var roomier = map[string]int{"internal/controller": 6500}

// check returns what is beyond its bound.
func (h *house) check() error {
	var beyond []string
	for dir, r := range h.packages {
		if bound := cmp.Or(roomier[dir], maxLines); r.lines > bound {
			beyond = append(beyond, fmt.Sprintf("package %s has %d lines, the bound is %d", dir, r.lines, bound))
		}
	}
	for _, f := range h.long {
		beyond = append(beyond, fmt.Sprintf("function %s lines, the bound is %d", f, maxFunction))
	}
	for _, i := range h.big() {
		beyond = append(beyond, fmt.Sprintf("interface %s methods, the bound is %d", i, maxMethods))
	}
	if len(beyond) == 0 {
		return nil
	}
	slices.Sort(beyond)
	return errors.New(strings.Join(beyond, "\n  "))
}

// leftOut are folders without product code: what is generated, and what tests and builds.
// What only tests use, other than folders that are named so, comes last.
var leftOut = []string{"gen", "integration", "tools", ".git", ".build", "testdata", "rules", "fixture"}

// generated says who wrote a file.
const generated = "// Code generated "

// shapes are the types that a contract, or what becomes one, has on its way from a
// PeeringRequest to what runs, by the name of their package.
var shapes = []string{
	"v1alpha1.Contract", "v1alpha1.ContractSpec", "v1alpha1.PeeringRequest", "v1alpha1.PeeringRequestSpec", "v1alpha1.PeeringPolicySpec",
	"peering.Terms", "peering.Contract", "peering.Envelope", "peering.Grant", "peering.Ask", "peering.Policy",
	"peering.Advertisement", "peering.Offer", "peering.ContractState",
	"ententev1.Contract", "ententev1.Advertisement", "ententev1.ContractState", "ententev1.RequestPeeringRequest",
	"offload.Contract", "server.OffloadContract",
}

// room is one package.
type room struct {
	files, lines, code, exported int
}

// name is that of a type.
type name struct{ dir, of string }

type house struct {
	root       string
	packages   map[string]*room
	interfaces map[name]*ast.InterfaceType
	// functions are the lengths of all functions, in lines; long are those over 60, and
	// turns what takes a contract in one shape and returns it in another.
	functions   []int
	long, turns []string
}

// walk reads all files.
func (h *house) walk() error {
	return filepath.WalkDir(h.root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir():
			rel, err := filepath.Rel(h.root, path)
			if err == nil && (slices.Contains(leftOut, rel) || slices.Contains(leftOut, d.Name()) || strings.HasSuffix(d.Name(), "test")) {
				return filepath.SkipDir
			}
			return err
		case !strings.HasSuffix(path, ".go"), strings.HasSuffix(path, "_test.go"):
			return nil
		}
		return h.file(path)
	})
}

func (h *house) file(path string) error {
	text, err := os.ReadFile(path)
	if err != nil || bytes.HasPrefix(text, []byte(generated)) || bytes.Contains(text, []byte("\n"+generated)) {
		return err
	}
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, text, parser.SkipObjectResolution)
	if err != nil {
		return err
	}
	dir, err := filepath.Rel(h.root, filepath.Dir(path))
	if err != nil {
		return err
	}
	r := h.packages[dir]
	if r == nil {
		r = &room{}
		h.packages[dir] = r
	}
	r.files++
	r.lines += bytes.Count(text, []byte("\n"))
	r.code += codeLines(text)
	for _, d := range file.Decls {
		r.exported += exported(d)
		if f, ok := d.(*ast.FuncDecl); ok {
			h.function(set, dir, file.Name.Name, f)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		if s, ok := n.(*ast.TypeSpec); ok {
			if i, ok := s.Type.(*ast.InterfaceType); ok {
				h.interfaces[name{dir, s.Name.Name}] = i
			}
		}
		return true
	})
	return nil
}

// big returns the interfaces over five methods, with those of the interfaces of their package that they embed.
// What another package has counts as one.
func (h *house) big() (out []string) {
	for at, i := range h.interfaces {
		if n := h.methods(at.dir, i); n > maxMethods {
			out = append(out, fmt.Sprintf("%s.%s (%d)", at.dir, at.of, n))
		}
	}
	return out
}

func (h *house) methods(dir string, i *ast.InterfaceType) (n int) {
	for _, f := range i.Methods.List {
		n += max(len(f.Names), 1)
		if embedded, ok := f.Type.(*ast.Ident); ok && h.interfaces[name{dir, embedded.Name}] != nil {
			n += h.methods(dir, h.interfaces[name{dir, embedded.Name}]) - 1
		}
	}
	return n
}

// codeLines counts the lines that have more than blanks and comments.
func codeLines(text []byte) int {
	set := token.NewFileSet()
	file := set.AddFile("", set.Base(), len(text))
	var s scanner.Scanner
	s.Init(file, text, nil, 0)
	lines := map[int]bool{}
	for {
		pos, tok, lit := s.Scan()
		if tok == token.EOF {
			return len(lines)
		}
		if tok == token.SEMICOLON && lit == "\n" {
			continue
		}
		for i := range strings.Count(lit, "\n") + 1 {
			lines[file.Line(pos)+i] = true
		}
	}
}

// exported counts the exported names of a declaration, methods included.
func exported(d ast.Decl) (n int) {
	count := func(name *ast.Ident) {
		if name.IsExported() {
			n++
		}
	}
	switch d := d.(type) {
	case *ast.FuncDecl:
		count(d.Name)
	case *ast.GenDecl:
		for _, s := range d.Specs {
			switch s := s.(type) {
			case *ast.TypeSpec:
				count(s.Name)
			case *ast.ValueSpec:
				for _, name := range s.Names {
					count(name)
				}
			}
		}
	}
	return n
}

func (h *house) function(set *token.FileSet, dir, pkg string, f *ast.FuncDecl) {
	name := dir + "." + f.Name.Name
	lines := set.Position(f.End()).Line - set.Position(f.Pos()).Line + 1
	h.functions = append(h.functions, lines)
	if lines > maxFunction {
		h.long = append(h.long, fmt.Sprintf("%s (%d)", name, lines))
	}
	from, to := shapesIn(pkg, f.Type.Params), shapesIn(pkg, f.Type.Results)
	if f.Recv != nil {
		from = append(from, shapesIn(pkg, f.Recv)...)
	}
	for _, out := range to {
		if len(from) > 0 && !slices.Contains(from, out) {
			h.turns = append(h.turns, fmt.Sprintf("%s: %s → %s", name, strings.Join(from, ", "), out))
			return
		}
	}
}

// shapesIn returns the shapes of a contract among parameters or results.
func shapesIn(pkg string, fields *ast.FieldList) (out []string) {
	if fields == nil {
		return nil
	}
	for _, field := range fields.List {
		if name := typeName(pkg, field.Type); slices.Contains(shapes, name) && !slices.Contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}

func typeName(pkg string, e ast.Expr) string {
	switch e := e.(type) {
	case *ast.StarExpr:
		return typeName(pkg, e.X)
	case *ast.ArrayType:
		return typeName(pkg, e.Elt)
	case *ast.Ident:
		return pkg + "." + e.Name
	case *ast.SelectorExpr:
		if x, ok := e.X.(*ast.Ident); ok {
			return x.Name + "." + e.Sel.Name
		}
	}
	return ""
}

func (h *house) print() error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "files\tlines\tcode\texported\t package\t")
	var all room
	names := make([]string, 0, len(h.packages))
	for name := range h.packages {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(h.packages[b].lines, h.packages[a].lines), cmp.Compare(a, b))
	})
	for _, name := range names {
		r := h.packages[name]
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t %s\t\n", r.files, r.lines, r.code, r.exported, name)
		all.files, all.lines, all.code, all.exported = all.files+r.files, all.lines+r.lines, all.code+r.code, all.exported+r.exported
	}
	fmt.Fprintf(w, "%d\t%d\t%d\t%d\t all\t\n", all.files, all.lines, all.code, all.exported)
	if err := w.Flush(); err != nil {
		return err
	}
	slices.Sort(h.functions)
	at := func(percent int) int { return h.functions[len(h.functions)*percent/100] }
	fmt.Printf("\n%d functions: median %d lines, p90 %d, %d over %d\n%d shapes of a contract\n", len(h.functions), at(50), at(90), len(h.long), maxFunction, len(shapes))
	for _, l := range []struct {
		title string
		list  []string
	}{{fmt.Sprintf("functions over %d lines", maxFunction), h.long}, {fmt.Sprintf("interfaces over %d methods", maxMethods), h.big()}, {"functions that turn a contract into another shape", h.turns}} {
		slices.Sort(l.list)
		fmt.Printf("\n%s: %d\n", l.title, len(l.list))
		for _, line := range l.list {
			fmt.Println("  " + line)
		}
	}
	return nil
}
