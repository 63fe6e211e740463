package peering

import (
	"strings"
	"testing"
	"unsafe"
)

func TestACutTextDoesNotKeepTheWholeInMemory(t *testing.T) {
	long := strings.Repeat("x", 1<<20)
	if cut := Text(long, 10); cut != "xxxxxxxxxx" || unsafe.StringData(cut) == unsafe.StringData(long) {
		t.Errorf("%q is part of a text of a megabyte", cut)
	}
}
