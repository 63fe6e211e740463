package reflection

import (
	"compress/gzip"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/entente-dev/entente/internal/wire"
	"github.com/entente-dev/entente/peering"
)

// gzipped is the prefix of a note that is compressed, and in base64.
const gzipped = "gzip:"

// Pack returns the note for an object, compressed if it is large.
func Pack(plain []byte) (string, error) {
	if len(plain) <= plainNote {
		return string(plain), nil
	}
	var out strings.Builder
	out.WriteString(gzipped)
	text := base64.NewEncoder(base64.StdEncoding, &out)
	small := gzip.NewWriter(text)
	if _, err := small.Write(plain); err != nil {
		return "", err //nolint:wrapcheck // the caller names the object
	}
	if err := errors.Join(small.Close(), text.Close()); err != nil {
		return "", err
	}
	return out.String(), nil
}

// Unpack returns what Pack packed.
func Unpack(note string) ([]byte, error) {
	plain := []byte(note)
	if packed, ok := strings.CutPrefix(note, gzipped); ok {
		small, err := gzip.NewReader(base64.NewDecoder(base64.StdEncoding, strings.NewReader(packed)))
		if err != nil {
			return nil, fmt.Errorf("decompress it: %w", err)
		}
		// What was accepted was no larger; another writer may have changed the note since.
		if plain, err = io.ReadAll(io.LimitReader(small, 2*wire.MaxObjectBytes)); err != nil {
			return nil, fmt.Errorf("decompress it: %w", err)
		}
	}
	return plain, nil
}

// Note decodes the note on a Service.
func Note(svc metav1.Object) (in peering.ServiceObject, err error) {
	note, err := Unpack(svc.GetAnnotations()[NoteService])
	if err != nil {
		return in, err
	}
	if err := json.Unmarshal(note, &in); err != nil {
		return in, fmt.Errorf("decode it: %w", err)
	}
	return in, nil
}
