# Makes text and a table of Debian's German manual pages (apt install manpages-de), in text/:
#     sh examples/manpages.sh
# train.txt and dev.txt have a paragraph a line and a blank line after each page; train.csv and
# dev.csv paragraphs of commands (section 1), files (5) and administration (8). Each twentieth page
# is held out. docs/own_language.md trains on them.
mkdir -p text
for part in train dev; do echo text,section > text/$part.csv; : > text/$part.txt; done
i=0
find /usr/share/man/de -type f -name '*.gz' | sort | while read -r page; do
  i=$((i + 1))
  part=train; test $((i % 20)) = 0 && part=dev
  section=$(basename "$(dirname "$page")")
  LC_ALL=C.UTF-8 MANWIDTH=10000 man --nh --nj -l "$page" 2> /dev/null | col -bx |
    awk -v section="${section#man}" -v table=text/$part.csv '
      /^[^ ]/ { skip = /AUTOR|BERSETZUNG|COPYRIGHT|SIEHE AUCH|FEHLER|[(]/ }
      /^ / && !skip && !/│|─/ {
        gsub(/ +/, " "); sub(/^ /, "")
        if (length > 60) print
        if (length > 100 && length < 600 && section ~ /^[158]$/ && rows++ < 10) {
          gsub(/"/, "\"\""); print "\"" $0 "\"," section >> table
        }
      }
      END { print "" }' >> text/$part.txt
done
