package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// outputFlags say in which form to print.
type outputFlags struct {
	format string
	get    string
	table  bool // whether table is among the formats
}

func (o *outputFlags) add(cmd *cobra.Command) {
	cmd.Flags().StringVarP(&o.format, "output", "o", "", "The form of the output: json or yaml"+map[bool]string{true: ", or table (the default)"}[o.table])
}

func (o *outputFlags) addGet(cmd *cobra.Command) {
	cmd.Flags().StringVar(&o.get, "get", "", "Print one field only, by its path in the JSON output: tunnel.roundTrip, contracts.0.phase")
}

func (o *outputFlags) check() error {
	switch o.format {
	case "", "json", "yaml":
		return nil
	case "table":
		if o.table {
			return nil
		}
	}
	return usageError("--output %q: want json or yaml", o.format)
}

// structured says whether the output is for programs.
func (o *outputFlags) structured() bool {
	return o.format == "json" || o.format == "yaml" || o.get != ""
}

// print prints messages: one as an object, several as a list.
func (o *outputFlags) print(w io.Writer, m ...proto.Message) error {
	values := make([]any, 0, len(m))
	for _, message := range m {
		v, err := plainJSON(message)
		if err != nil {
			return err
		}
		values = append(values, v)
	}
	if len(values) == 1 {
		return o.printValue(w, values[0])
	}
	return o.printValue(w, values)
}

func (o *outputFlags) printValue(w io.Writer, v any) error {
	if o.get != "" {
		field, err := lookUp(v, o.get)
		if err != nil {
			return err
		}
		v = field
	}
	text, isText := v.(string)
	switch {
	case o.format == "yaml":
		b, err := yaml.Marshal(v)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		_, err = w.Write(b)
		return err
	case o.format != "json" && isText:
		// A single text is printed as it is, for scripts.
		_, err := fmt.Fprintln(w, text)
		return err
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// plainJSON is a message as the REST API writes it, as maps and slices. Going
// through encoding/json also undoes the spaces that protojson varies.
func plainJSON(m proto.Message) (any, error) {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	var v any
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	return v, nil
}

// lookUp follows a path of names, in any case, and numbers.
func lookUp(v any, path string) (any, error) {
	for step := range strings.SplitSeq(path, ".") {
		switch in := v.(type) {
		case map[string]any:
			names := make([]string, 0, len(in))
			found := false
			for name, value := range in {
				if strings.EqualFold(name, step) {
					v, found = value, true
				}
				names = append(names, name)
			}
			if !found {
				slices.Sort(names)
				return nil, fmt.Errorf("--get %s: no field %q here; there are %s", path, step, strings.Join(names, ", "))
			}
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(in) {
				return nil, fmt.Errorf("--get %s: %q is not one of the %d items here (0 to %d)", path, step, len(in), len(in)-1)
			}
			v = in[i]
		default:
			return nil, fmt.Errorf("--get %s: there is nothing in front of %q but a value", path, step)
		}
	}
	return v, nil
}
