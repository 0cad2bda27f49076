/* report/live/tty_module.c - a terminal by ncurses: the module lockstep_tty.so. */
#include <locale.h>
#include <ncurses.h>
#include <string.h>

#include "report/live/tty_module.h"

static SCREEN *screen;

static void close_tty(void)
{
    endwin();
    delscreen(screen);
    screen = NULL;
}

static int open_tty(void)
{
    setlocale(LC_CTYPE, "");
    screen = newterm(NULL, stdout, stdin);
    if (screen == NULL)
        return 1;
    if (tigetstr("cup") == NULL) { /* TERM=dumb: it can't move the cursor */
        close_tty();
        return 1;
    }
    cbreak();
    noecho();
    keypad(stdscr, TRUE);
    curs_set(0);
    return 0;
}

static void size(int *rows, int *columns)
{
    getmaxyx(stdscr, *rows, *columns);
}

static void draw(const char *text)
{
    int rows, columns;
    size(&rows, &columns);
    erase();
    for (int row = 0; row < rows && *text != '\0'; row++) {
        size_t n = strcspn(text, "\n");
        mvaddnstr(row, 0, text, (int)n);
        text += n + (text[n] == '\n');
    }
    refresh();
}

static int key(int milliseconds)
{
    timeout(milliseconds);
    int got = getch();
    return got == ERR ? -1 : got == KEY_UP ? LKS__TTY_UP : got == KEY_DOWN ? LKS__TTY_DOWN : got;
}

LKS__MODULE_EXPORT const lks__tty_module lks__module_table = {
    LKS__TTY_MODULE_VERSION, open_tty, size, draw, key, close_tty};
