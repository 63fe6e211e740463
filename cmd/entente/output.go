package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"
)

// The forms of output. What people read has no name but for lists, where it is a
// table.
const (
	formJSON  = "json"
	formYAML  = "yaml"
	formTable = "table"
	formWide  = "wide"
	formCSV   = "csv"
	formDSSE  = "dsse"
)

// outputFlags say in which form to print.
type outputFlags struct {
	form string
	get  string
	// forms is what form may be.
	forms []string
}

// add adds --output, with forms besides json and yaml, and --get.
func (o *outputFlags) add(cmd *cobra.Command, more ...string) {
	o.forms = append(more, formJSON, formYAML)
	last := len(o.forms) - 1
	cmd.Flags().StringVarP(&o.form, "output", "o", "", "The form of the output: "+strings.Join(o.forms[:last], ", ")+" or "+o.forms[last])
	complete(cmd, "output", o.forms...)
	cmd.Flags().StringVar(&o.get, "get", "", "Print one field only, by its JSONPath in the JSON output, as a.b[0].c or a[*].b")
}

func (o *outputFlags) check() error {
	if o.form != "" && !slices.Contains(o.forms, o.form) {
		return usageError("--output %q: want one of %s", o.form, strings.Join(o.forms, ", "))
	}
	if _, err := parsePath(o.get); err != nil {
		return usageError("%w", err)
	}
	return nil
}

// structured says whether the output is for programs.
func (o *outputFlags) structured() bool {
	return o.form == formJSON || o.form == formYAML || o.get != ""
}

// write prints a message as an object.
func (o *outputFlags) write(w io.Writer, m proto.Message) error {
	v, err := plainJSON(m)
	if err != nil {
		return err
	}
	return o.writeValue(w, v)
}

// result prints a message where the output is for programs.
func (a *app) result(o *outputFlags, m proto.Message) error {
	if !o.structured() {
		return nil
	}
	return o.write(a.out, m)
}

// printed prints messages where the output is for programs, and says so where there are
// none: none is what there is none of, and next what can be done about it.
func printed[M proto.Message](a *app, o *outputFlags, messages []M, none, next string) (done bool, err error) {
	switch {
	case o.structured():
		return true, writeList(o, a.out, messages)
	case len(messages) == 0:
		a.none(none, next)
		return true, nil
	}
	return false, nil
}

func writeList[M proto.Message](o *outputFlags, w io.Writer, messages []M) error {
	list, err := plainList(messages)
	if err != nil {
		return err
	}
	return o.writeValue(w, list)
}

func (o *outputFlags) writeValue(w io.Writer, v any) error {
	if o.get != "" {
		var err error
		if v, err = field(v, o.get); err != nil {
			return err
		}
	}
	text, isText := v.(string)
	switch {
	case o.form == formYAML:
		b, err := yaml.Marshal(v)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		_, err = w.Write(b)
		return err
	case o.form != formJSON && isText:
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

func plainList[M proto.Message](messages []M) ([]any, error) {
	list := make([]any, 0, len(messages))
	for _, m := range messages {
		v, err := plainJSON(m)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}
