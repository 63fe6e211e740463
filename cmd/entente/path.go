package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// lookUp follows a path such as a.b[0].c or labels["example.com/zone"] into JSON.
// Names may be in any case, and an index may also be written as a name: a.0.b.
func lookUp(v any, path string) (any, error) {
	steps, err := splitPath(path)
	if err != nil {
		return nil, err
	}
	for _, step := range steps {
		switch in := v.(type) {
		case map[string]any:
			value, ok := in[step]
			if !ok {
				value, ok = anyCase(in, step)
			}
			if !ok {
				return nil, fmt.Errorf("--get %s: no field %q here; there are %s", path, step, strings.Join(slices.Sorted(maps.Keys(in)), ", "))
			}
			v = value
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(in) {
				return nil, fmt.Errorf("--get %s: %q is not one of the %d items here, which count from 0", path, step, len(in))
			}
			v = in[i]
		default:
			return nil, fmt.Errorf("--get %s: there is nothing in front of %q but a value", path, step)
		}
	}
	return v, nil
}

func anyCase(in map[string]any, step string) (any, bool) {
	for _, name := range slices.Sorted(maps.Keys(in)) {
		if strings.EqualFold(name, step) {
			return in[name], true
		}
	}
	return nil, false
}

// splitPath splits a path into names and indices.
func splitPath(path string) ([]string, error) {
	var steps []string
	rest := path
	for rest != "" {
		switch {
		case strings.HasPrefix(rest, `["`):
			dec := json.NewDecoder(strings.NewReader(rest[1:]))
			var name string
			if err := dec.Decode(&name); err != nil {
				return nil, fmt.Errorf("after %q: a name in quotes has no end", path[:len(path)-len(rest)])
			}
			steps = append(steps, name)
			rest = rest[1+dec.InputOffset():]
			if !strings.HasPrefix(rest, "]") {
				return nil, fmt.Errorf("no ] after %q", name)
			}
			rest = rest[1:]
		case rest[0] == '[':
			index, after, ok := strings.Cut(rest[1:], "]")
			if !ok || index == "" {
				return nil, fmt.Errorf("a [ without an index and a ]")
			}
			steps, rest = append(steps, index), after
		default:
			rest = strings.TrimPrefix(rest, ".")
			end := strings.IndexAny(rest, ".[")
			if end < 0 {
				end = len(rest)
			}
			if end == 0 {
				return nil, fmt.Errorf("an empty name")
			}
			steps, rest = append(steps, rest[:end]), rest[end:]
		}
	}
	return steps, nil
}
