package printer

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFieldsAreFoundAsInJavaScriptAndKubectl(t *testing.T) {
	t.Parallel()
	v := map[string]any{"a": []any{map[string]any{"b": "1"}, map[string]any{"b": "2"}}, "l": map[string]any{"x.io/y": "3"}}
	for path, want := range map[string]any{
		"a[0].b": "1", ".a[0].b": "1", "a[-1].b": "2", "a[*].b": []any{"1", "2"}, `l["x.io/y"]`: "3", `l['x\.io/y']`: "3",
	} {
		if got, err := Field(v, path); err != nil || !cmp.Equal(got, want) {
			t.Errorf("%s: %v, %v, want %v", path, got, err, want)
		}
	}
	var p path
	for _, malformed := range []string{"a[", "a..[", "{.a}}", "a[x"} {
		if err := p.Set(malformed); err == nil {
			t.Errorf("%s is a path", malformed)
		}
	}
}

func TestGetNamesTheExistingFields(t *testing.T) {
	t.Parallel()
	v := map[string]any{"a": map[string]any{"b": []any{map[string]any{"c": "1", "d.e": "2"}}, "text": "x"}, "z": "y"}
	for path, want := range map[string]string{
		"x": "there are a, z", "x.y": "there are a, z", ".x": "there are a, z", "a.x": "there are b, text", `a["x"].y`: "there are b, text", "a.b[0].x": "there are c, d.e",
		"a.b[0].x.y": "there are c, d.e", "a.b[*].x": "there are c, d.e",
		"a.text.x": "x is not found; a.text has no fields", "a.b[7]": "a.b is a list: choose an element as in a.b[0], or all with a.b[*]",
	} {
		_, err := Field(v, path)
		if err == nil || !strings.HasSuffix(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
	}
}

func TestAPathThatLeadsNowhereSaysWhatThereIs(t *testing.T) {
	t.Parallel()
	peer := map[string]any{"name": "peers/a", "labels": map[string]any{}, "contracts": []any{}, "endpoints": []any{"a:1", "b:2"}, "tunnel": map[string]any{"up": true}}
	for _, tc := range []struct {
		v          any
		path, want string
	}{
		{peer, "nothing", "nothing is not found; there are contracts, endpoints, labels, name, tunnel"},
		{peer, "tunnel.mtu", "mtu is not found; there are up"},
		{peer, "name.first", "first is not found; name has no fields"},
		{peer, "labels.zone", "zone is not found; labels has no fields"},
		{peer, "contracts[0].phase", "contracts is an empty list"},
		{peer, "contracts.phase", "phase is not found; contracts is an empty list"},
		{peer, "endpoints[7]", "endpoints is a list: choose an element as in endpoints[0], or all with endpoints[*]"},
		{[]any{}, "name", "name is not found; the output is an empty list"},
		{[]any{peer}, "name", "name is not found; the output is a list: choose an element as in [0], or all with [*]"},
		{[]any{peer}, "[*].nothing", "nothing is not found; there are contracts, endpoints, labels, name, tunnel"},
		{[]any{}, "[0]", "the output is an empty list"},
	} {
		if _, err := Field(tc.v, tc.path); err == nil || !strings.HasPrefix(err.Error(), "--get "+tc.path+": ") || !strings.HasSuffix(err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.path, err, tc.want)
		}
	}
	if got, err := Field([]any{}, "[*].name"); err != nil || len(got.([]any)) != 0 {
		t.Errorf("all of none: got %v, %v", got, err)
	}
}

func FuzzField(f *testing.F) {
	for _, path := range []string{"a[*].b", "a[0].b", `["a"][0]["b"]`, "a[", "..", `["\u0000"]`} {
		f.Add(path)
	}
	f.Fuzz(func(_ *testing.T, path string) {
		_, _ = Field(map[string]any{"a": []any{map[string]any{"b": "c"}}}, path)
	})
}
