package datagrams

import (
	"bytes"
	"testing"
)

func TestFramesCross(t *testing.T) {
	type frame struct {
		from, to Tag
		data     string
	}
	want := []frame{{Tag{1}, Tag{2}, "a datagram"}, {Tag{3}, Tag{4}, ""}, {Tag{0xff}, Tag{0xfe}, string(make([]byte, MaxDatagram))}}
	var batch []byte
	for _, f := range want {
		batch = appendFrame(batch, f.from, f.to, []byte(f.data))
	}
	var got []frame
	if err := Frames(batch, func(from, to Tag, d []byte) { got = append(got, frame{from, to, string(d)}) }); err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d frames, want %d", len(got), len(want))
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("frame %d differs", i)
		}
	}
}

func TestBatchesThatAreRefused(t *testing.T) {
	whole := appendFrame(nil, Tag{1}, Tag{2}, []byte("datagram"))
	long := appendFrame(nil, Tag{1}, Tag{2}, make([]byte, MaxDatagram+1))
	for name, batch := range map[string][]byte{
		"a head that ends": whole[:frameHead-1], "a datagram that ends": whole[:len(whole)-1], "a datagram that is too long": long,
		"a rest": append(bytes.Clone(whole), 0),
	} {
		if err := Frames(batch, func(Tag, Tag, []byte) {}); err == nil {
			t.Errorf("%s was accepted", name)
		}
	}
}

func FuzzFrames(f *testing.F) {
	f.Add(appendFrame(appendFrame(nil, Tag{1}, Tag{2}, []byte("x")), Tag{3}, Tag{4}, nil))
	f.Add([]byte{0})
	f.Fuzz(func(t *testing.T, batch []byte) {
		var again []byte
		err := Frames(batch, func(from, to Tag, d []byte) {
			if len(d) > MaxDatagram {
				t.Fatalf("a datagram of %d bytes", len(d))
			}
			again = appendFrame(again, from, to, d)
		})
		if !bytes.HasPrefix(batch, again) || err == nil && len(again) != len(batch) {
			t.Fatalf("%x is read as %x, %v", batch, again, err)
		}
	})
}

func TestOnlyMessagesOfWireGuardAreCarried(t *testing.T) {
	message := func(kind byte, n int) []byte { return append([]byte{kind}, make([]byte, n-1)...) }
	for name, row := range map[string]struct {
		datagram []byte
		want     kind
	}{
		"an initiation":              {message(1, 148), kindInitiation},
		"an initiation that is long": {message(1, 149), kindNone},
		"a response":                 {message(2, 92), kindResponse},
		"a cookie":                   {message(3, 64), kindCookie},
		"a keepalive":                {message(4, 32), kindData},
		"data":                       {message(4, 1452), kindData},
		"data that is too long":      {message(4, MaxDatagram+1), kindNone},
		"data that is too short":     {message(4, 31), kindNone},
		"nothing":                    {nil, kindNone},
		"another kind":               {message(5, 148), kindNone},
		"zero":                       {make([]byte, 148), kindNone},
		"a DNS query":                {append([]byte{0x12, 0x34, 1, 0, 0, 1}, make([]byte, 40)...), kindNone},
		"reserved bytes":             {append([]byte{4, 0, 0, 1}, make([]byte, 40)...), kindNone},
	} {
		if got := kindOf(row.datagram); got != row.want {
			t.Errorf("%s: %d, want %d", name, got, row.want)
		}
	}
}
