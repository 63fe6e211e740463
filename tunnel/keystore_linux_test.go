package tunnel

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/entente-dev/entente/tunnel/probe"
)

// disk is a KeyStore that may be full.
type disk struct {
	full  bool
	saves int
	key   []byte
}

func (d *disk) Load() []byte { return d.key }

func (d *disk) Save(key []byte) error {
	d.saves++
	if d.full {
		d.key = nil
		return errors.New("the disk is full")
	}
	d.key = bytes.Clone(key)
	return nil
}

func TestAKeyThatCannotBeKeptIsNotUsed(t *testing.T) {
	t.Parallel()
	d := &disk{}
	f, err := New(Config{Keys: d})
	if err != nil {
		t.Fatal(err)
	}
	f.key, f.rekey.next = privateKey{1}, privateKey{2}
	if err := f.saveKey(f.key); err != nil {
		t.Fatal(err)
	}
	d.full = true
	if missing, err := f.countDown(t.Context(), probe.KeyTag{1}, false); err == nil || !strings.Contains(err.Error(), "cannot save") || len(missing) > 0 || f.key != (privateKey{1}) {
		t.Errorf("the key was replaced: %v, %v", missing, err)
	}
	// The next pass tries again to keep the key that is in use.
	d.full = false
	if err := f.saveKey(f.key); err != nil || !bytes.Equal(d.key, f.key[:]) {
		t.Error("kept is another key")
	}
	before := d.saves
	if f.saveKey(f.key) != nil || d.saves != before {
		t.Error("what is kept was saved again")
	}
}
