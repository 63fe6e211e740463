package volumecopy

import (
	"archive/tar"
	"bufio"
	"bytes"
	"errors"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"testing/quick"
	"time"
)

// written returns a tar archive of headers, each with as many bytes as its size.
func written(headers ...*tar.Header) []byte {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range headers {
		h.Format = tar.FormatPAX
		if err := w.WriteHeader(h); err != nil {
			panic(err)
		}
		_, _ = w.Write(make([]byte, h.Size))
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return b.Bytes()
}

var rootHeader = tar.Header{Typeflag: tar.TypeDir, Name: "./", Mode: 0o755}

// hostile are archives of a hostile sender.
func hostile() map[string][]byte {
	root := func() *tar.Header { h := rootHeader; return &h }
	file := func(name string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: 0o600, Size: 4}
	}
	link := func(name, to string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeSymlink, Name: name, Linkname: to}
	}
	hard := func(name, to string) *tar.Header {
		return &tar.Header{Typeflag: tar.TypeLink, Name: name, Linkname: to}
	}
	records := func(h *tar.Header, kv ...string) *tar.Header {
		h.PAXRecords = map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			h.PAXRecords[kv[i]] = kv[i+1]
		}
		return h
	}
	return map[string][]byte{
		"above":                                  written(root(), file("../secret")),
		"far above":                              written(root(), file("a/../../secret")),
		"absolute":                               written(root(), file("/etc/passwd")),
		"not plain":                              written(root(), file("a//b")),
		"the root as a file":                     written(file(".")),
		"no root":                                written(file("a")),
		"through a link":                         written(root(), link("a", ".."), file("a/secret")),
		"through a link that was a directory":    written(root(), &tar.Header{Typeflag: tar.TypeDir, Name: "a/", Mode: 0o755}, link("a", ".."), file("a/secret")),
		"a hard link above":                      written(root(), hard("a", "../secret")),
		"a hard link through a link":             written(root(), link("a", "../secret"), hard("b", "a/c")),
		"a hard link to a file that is not sent": written(root(), hard("a", "b")),
		"a hard link to a directory":             written(root(), &tar.Header{Typeflag: tar.TypeDir, Name: "a/", Mode: 0o755}, hard("b", "a")),
		"the mark":                               written(root(), file(marker+"1/part")),
		"the mark as a link":                     written(root(), link(marker+"1", "..")),
		"a directory of the file system":         written(root(), &tar.Header{Typeflag: tar.TypeDir, Name: lost + "/", Mode: 0o755}),
		"a device":                               written(root(), &tar.Header{Typeflag: tar.TypeChar, Name: "null", Devmajor: 1, Devminor: 3}),
		"twice":                                  written(root(), file("a"), file("a")),
		"without its directory":                  written(root(), file("a/b")),
		"a file that is not there":               written(root(), records(&tar.Header{Typeflag: tar.TypeReg, Name: "a"}, recordHave, "1", recordSize, "4")),
		"a label of the node":                    written(root(), records(file("a"), recordXattr+"security.selinux", "x")),
		"parts beyond the end":                   written(root(), records(file("a"), recordSize, "8", recordExtents, "6,4;")),
		"parts that overlap":                     written(root(), records(file("a"), recordSize, "8", recordExtents, "0,2;1,2;")),
		"parts of another size":                  written(root(), records(file("a"), recordSize, "8", recordExtents, "0,8;")),
		"parts that are not numbers":             written(root(), records(file("a"), recordSize, "8", recordExtents, "0,x;")),
		"too many parts":                         written(root(), records(&tar.Header{Typeflag: tar.TypeReg, Name: "a", Size: maxExtents + 1}, recordSize, "99999", recordExtents, strings.Repeat("0,1;", maxExtents+1))),
		"a size beyond any":                      written(root(), records(&tar.Header{Typeflag: tar.TypeReg, Name: "a"}, recordSize, "9223372036854775807", recordExtents, "")),
		"nobody's":                               written(root(), &tar.Header{Typeflag: tar.TypeReg, Name: "a", Uid: 1<<32 - 1}),
		"deep":                                   written(root(), file(strings.Repeat("a/", maxDepth)+"a")),
		"a long name":                            written(root(), file(strings.Repeat("a", maxName+1))),
	}
}

const lost = "lost+found"

// random makes entries that are as they should be.
func random(r *rand.Rand) *Entry {
	e := &Entry{
		Path: []string{".", "a", "a/b", "a/\xff\n", strings.Repeat("x", maxName)}[r.IntN(5)],
		Kind: []Kind{Directory, File, Symlink, HardLink, FIFO}[r.IntN(5)],
		Mode: r.Uint32N(0o10000), UID: r.IntN(1 << 31), GID: r.IntN(1 << 22),
		ModTime: time.Unix(r.Int64N(1<<33)-1<<30, r.Int64N(1e9)),
	}
	if e.Path == "." {
		e.Kind = Directory
	}
	switch e.Kind {
	case Symlink:
		e.Link = []string{"..", "/etc/passwd", "x y"}[r.IntN(3)]
	case HardLink:
		e.Link = "before/it"
	case File:
		e.Size = r.Int64N(1 << 20)
		switch r.IntN(3) {
		case 0:
			e.have = true
		case 1:
			e.extents = []extent{}
			for at := int64(0); r.IntN(3) > 0 && at < e.Size; {
				x := extent{at + r.Int64N(e.Size-at), 1}
				e.extents = append(e.extents, x)
				at = x.offset + x.length
			}
		}
	}
	if (e.Kind == File || e.Kind == Directory) && r.IntN(2) == 0 {
		e.Xattrs = map[string]string{"user.a": "1\x00=2\n", "security.capability": "\x01\xff"}
	}
	return e
}

func TestEntriesCrossAsTheyAre(t *testing.T) {
	check := func(seed uint64) bool {
		want := random(rand.New(rand.NewPCG(seed, 1)))
		a := readArchive(bytes.NewReader(written(want.header())))
		got, err := a.next()
		if err != nil || !got.ModTime.Equal(want.ModTime) {
			t.Logf("%+v becomes %+v, %v", want, got, err)
			return false
		}
		got.ModTime = want.ModTime
		if !reflect.DeepEqual(got, want) || !bytes.Equal(got.text(nil), want.text(nil)) {
			t.Logf("%+v becomes %+v", want, got)
			return false
		}
		_, err = a.next()
		return errors.Is(err, io.EOF)
	}
	if err := quick.Check(check, &quick.Config{MaxCount: 2000}); err != nil {
		t.Error(err)
	}
}

// Two entries that differ have different texts, wherever one field ends and the next one begins.
func TestNoTwoEntriesHaveOneText(t *testing.T) {
	seen := map[string]*Entry{}
	r := rand.New(rand.NewPCG(2, 2))
	for range 5000 {
		e := random(r)
		e.have, e.extents = false, nil
		if e.Kind == HardLink {
			e = &Entry{Path: e.Path, Kind: e.Kind, Link: e.Link}
		}
		if e.Kind == Symlink {
			e.Mode = 0
		}
		text := string(e.text(nil))
		if before := seen[text]; before != nil && !reflect.DeepEqual(before, e) {
			t.Errorf("%+v and %+v have one text", before, e)
		}
		seen[text] = e
	}
	a, b := &Entry{Path: "a", Kind: Symlink, Link: "bc"}, &Entry{Path: "ab", Kind: Symlink, Link: "c"}
	if bytes.Equal(a.text(nil), b.text(nil)) {
		t.Error("a field runs into the next one")
	}
}

// FuzzArchive reads any archive. Each accepted entry can be written, and is read as the same.
func FuzzArchive(f *testing.F) {
	f.Add(written(&rootHeader, (&Entry{Path: "a", Kind: File, Size: 9, extents: []extent{{2, 3}}, Xattrs: map[string]string{"user.x": "y"}}).header()))
	for _, bad := range hostile() {
		f.Add(bad)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		a := readArchive(bytes.NewReader(data))
		for {
			e, err := a.next()
			if err != nil {
				return
			}
			if err := e.check(); err != nil || strings.Contains("/"+e.Path+"/", "/../") || strings.HasPrefix(e.Path, "/") {
				t.Fatalf("%+v is taken: %v", e, err)
			}
			if e.follows() > 1<<20 {
				continue
			}
			again, err := readArchive(bytes.NewReader(written(e.header()))).next()
			if err != nil || !bytes.Equal(again.text(nil), e.text(nil)) {
				t.Fatalf("%+v becomes %+v, %v", e, again, err)
			}
		}
	})
}

// FuzzMessage reads any message of the other side.
func FuzzMessage(f *testing.F) {
	f.Add([]byte(`{"do":"copy"}` + "\n"))
	f.Add([]byte(`{"keys":-1}` + "\n"))
	f.Add([]byte(strings.Repeat("x", maxMessage+1)))
	f.Fuzz(func(t *testing.T, data []byte) {
		m, err := readMessage(bufioOf(data))
		if err == nil && (m.Keys < 0 || m.Keys > maxEntries) {
			t.Errorf("it has %d keys", m.Keys)
		}
	})
}
func bufioOf(b []byte) *bufio.Reader { return bufio.NewReader(bytes.NewReader(b)) }
