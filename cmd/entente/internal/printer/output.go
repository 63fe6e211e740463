package printer

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"sigs.k8s.io/yaml"

	"github.com/entente-dev/entente/cmd/entente/internal/flags"
	"github.com/entente-dev/entente/peering/jointoken"
)

// The forms of output. The form for people has no name, except for lists, where it is a table.
const (
	formJSON  = "json"
	formYAML  = "yaml"
	FormTable = "table"
	FormWide  = "wide"
	FormCSV   = "csv"
	FormDSSE  = "dsse"
)

// Flags say how to print.
type Flags struct {
	Form string
	get  path
}

// Add adds --output, with forms besides json and yaml, and --get.
func (o *Flags) Add(cmd *cobra.Command, more ...string) {
	forms := append(more, formJSON, formYAML)
	last := len(forms) - 1
	flags.Choice(cmd, &o.Form, "output", "o", "", "The form of the output: "+strings.Join(forms[:last], ", ")+" or "+forms[last], forms...)
	cmd.Flags().Var(&o.get, "get", "Print one field only, by its JSONPath in the JSON output, such as a.b[0].c or a[*].b")
}

// Structured reports whether the output is for programs.
func (o *Flags) Structured() bool {
	return o.Form == formJSON || o.Form == formYAML || o.get != ""
}

// Write prints a message as an object.
func (o *Flags) Write(w io.Writer, m proto.Message) error {
	v, err := PlainJSON(m)
	if err != nil {
		return err
	}
	return o.WriteValue(w, v)
}

// WriteList prints messages as a list of objects.
func WriteList[M proto.Message](o *Flags, w io.Writer, messages []M) error {
	list, err := PlainList(messages)
	if err != nil {
		return err
	}
	return o.WriteValue(w, list)
}

// WriteNext prints one message of a stream: as a line of JSON, or a YAML document.
func (o *Flags) WriteNext(w io.Writer, m proto.Message) error {
	v, err := PlainJSON(m)
	if err != nil {
		return err
	}
	return o.print(w, v, o.get == "")
}

// WriteValue prints a value that encoding/json can marshal, or its field that --get names.
func (o *Flags) WriteValue(w io.Writer, v any) error { return o.print(w, v, false) }

func (o *Flags) print(w io.Writer, v any, oneOfMany bool) (err error) {
	if o.get != "" {
		if v, err = Field(v, string(o.get)); err != nil {
			return err
		}
	}
	text, isText := v.(string)
	switch {
	case o.Form == formYAML:
		b, err := yaml.Marshal(v)
		if err != nil {
			return fmt.Errorf("write YAML: %w", err)
		}
		if oneOfMany {
			b = append([]byte("---\n"), b...)
		}
		_, err = w.Write(b)
		return err
	case o.Form != formJSON && isText:
		// A single string is printed without quotes, for scripts.
		_, err := fmt.Fprintln(w, text)
		return err
	}
	enc := json.NewEncoder(w)
	if !oneOfMany {
		enc.SetIndent("", "  ")
	}
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// PlainJSON is a message as in the REST API, as maps and slices. encoding/json also removes
// the random spaces of protojson.
func PlainJSON(m proto.Message) (any, error) {
	b, err := protojson.MarshalOptions{EmitDefaultValues: true}.Marshal(m)
	if err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	return Decode(b)
}

// Decode reads JSON as maps and slices, with numbers as they are written.
func Decode(b []byte) (v any, err error) {
	dec := json.NewDecoder(bytes.NewReader(b))
	dec.UseNumber()
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("read JSON: %w", err)
	}
	return v, nil
}

// PlainList is plainJSON of each message.
func PlainList[M proto.Message](messages []M) ([]any, error) {
	list := make([]any, len(messages))
	for i, m := range messages {
		var err error
		if list[i], err = PlainJSON(m); err != nil {
			return nil, err
		}
	}
	return list, nil
}

// Safe makes a line about a command's progress safe to print: without control characters, and
// without a token that was given in place of a name.
func Safe(s string) string { return jointoken.Redact(Clean(s)) }

// PlainValue is a value as maps and slices.
func PlainValue(v any) (any, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write JSON: %w", err)
	}
	return Decode(b)
}
