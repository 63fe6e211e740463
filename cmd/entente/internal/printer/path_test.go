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
		"a.b[0].x.y": "there are c, d.e", "a.b[*].x": "there are c, d.e", "a.text.x": "", "a.b[7]": "",
	} {
		_, err := Field(v, path)
		if err == nil || !strings.HasSuffix(err.Error(), want) || want == "" && strings.Contains(err.Error(), "there are") {
			t.Errorf("%s: got %v, want %q", path, err, want)
		}
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
