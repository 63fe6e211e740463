package printer

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	"k8s.io/client-go/util/jsonpath"
)

// quotedKey is a key as JavaScript and jq write it: labels["example.com/zone"].
var quotedKey = regexp.MustCompile(`\["([^"]*)"\]`)

// path is a flag with a path that parsePath parses.
type path string

func (p *path) String() string { return string(*p) }

func (*path) Type() string { return "string" }

func (p *path) Set(s string) error {
	*p = path(s)
	_, err := parsePath(s)
	return err
}

// parsePath parses a path as kubectl's JSONPath, without its braces and with quotes of
// either kind around a key: a.b[0].c, labels["example.com/zone"], peers[*].name.
func parsePath(path string) (*jsonpath.JSONPath, error) {
	expression := quotedKey.ReplaceAllStringFunc(path, func(key string) string {
		return "['" + strings.ReplaceAll(key[2:len(key)-2], ".", `\.`) + "']"
	})
	if !strings.HasPrefix(expression, "[") && !strings.HasPrefix(expression, ".") {
		expression = "." + expression
	}
	j := jsonpath.New("path")
	return j, j.Parse("{" + expression + "}")
}

// Field returns the value at a path; a list, if it matches several.
func Field(v any, path string) (any, error) {
	j, err := parsePath(path)
	if err != nil {
		return nil, err
	}
	results, err := j.FindResults(v)
	if err != nil {
		return nil, fmt.Errorf("--get %s: %w; %s", path, err, foundBefore(v, path))
	}
	found := []any{}
	for _, result := range results[0] {
		found = append(found, result.Interface())
	}
	if len(found) == 1 {
		return found[0], nil
	}
	return found, nil
}

// foundBefore says what there is at the point where a path fails: at its longest valid prefix.
func foundBefore(v any, path string) string {
	for path != "" {
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
		if path != "" {
			j, err := parsePath(path)
			if err != nil {
				continue
			}
			results, err := j.FindResults(v)
			if err != nil || len(results[0]) == 0 {
				continue
			}
			v = results[0][0].Interface()
		}
		break
	}
	what := cmp.Or(path, "the output")
	switch v := v.(type) {
	case map[string]any:
		if len(v) > 0 {
			return "there are " + strings.Join(slices.Sorted(maps.Keys(v)), ", ")
		}
	case []any:
		if len(v) == 0 {
			return what + " is an empty list"
		}
		return fmt.Sprintf("%s is a list: choose an element as in %s[0], or all with %s[*]", what, path, path)
	}
	return what + " has no fields"
}
