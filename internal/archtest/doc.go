// Package archtest holds the import rules of this module, as a test. It reads
// the dependencies of every package, direct and through others, and compares
// them with one table; a package that the table does not know fails too, so that
// a new one is placed on purpose.
package archtest
